"""The exceptions of Airflow that the integration uses."""


class AirflowRescheduleException(Exception):
    pass
