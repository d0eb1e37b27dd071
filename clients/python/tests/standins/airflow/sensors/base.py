"""The interface of Airflow's sensors that the integration uses."""

import logging
from typing import Any

from airflow.exceptions import AirflowRescheduleException


class PokeReturnValue:
    def __init__(self, is_done: bool, xcom_value: Any = None) -> None:
        self.is_done, self.xcom_value = is_done, xcom_value

    def __bool__(self) -> bool:
        return self.is_done


class BaseSensorOperator:
    def __init__(self, *, task_id: str, poke_interval: float = 60, timeout: float = 604800, mode: str = "poke") -> None:
        self.task_id, self.poke_interval, self.timeout, self.mode = task_id, poke_interval, timeout, mode
        self.log = logging.getLogger("airflow.task")

    def poke(self, context: Any) -> PokeReturnValue:
        raise NotImplementedError

    def execute(self, context: Any) -> Any:
        done = self.poke(context)
        if not done:
            raise AirflowRescheduleException
        return done.xcom_value
