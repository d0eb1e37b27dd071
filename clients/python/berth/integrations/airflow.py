"""Airflow: a hook that claims, and a sensor that waits for slots without a worker slot.

The fields of the Airflow connection are those of a sidecar: ``host`` is its address, such as
``https://berth.example.org:7420`` or ``unix:///run/berth/berth.sock``, ``password`` the token, and the extra
fields ``cacert``, ``cert`` and ``key`` are paths of PEM files. Without a connection the environment
(``BERTH_SIDECAR`` and the others) is used.
"""

import secrets
from typing import Any, Dict, Mapping, Optional

import berth
from airflow.exceptions import AirflowRescheduleException
from berth.names import label, name_of, unique_id

try:  # the places of Airflow 3
    from airflow.sdk import Variable
    from airflow.sdk.bases.hook import BaseHook
    from airflow.sdk.bases.sensor import BaseSensorOperator, PokeReturnValue
except ImportError:
    from airflow.hooks.base import BaseHook
    from airflow.models import Variable
    from airflow.sensors.base import BaseSensorOperator, PokeReturnValue


class BerthHook(BaseHook):  # type: ignore[misc]
    """Claims slots for tasks."""

    conn_name_attr = "berth_conn_id"
    conn_type = "berth"
    hook_name = "berth"

    def __init__(self, berth_conn_id: Optional[str] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.berth_conn_id = berth_conn_id

    def get_conn(self) -> berth.Client:
        """Return a client of the sidecar of the connection."""
        if self.berth_conn_id is None:
            return berth.Client()
        conn = self.get_connection(self.berth_conn_id)
        files = {name: path for name, path in conn.extra_dejson.items() if name in ("cacert", "cert", "key")}
        return berth.Client(sidecar=conn.host or None, token=conn.password or None, **files)

    def claim(self, pools: berth.Slots, **options: Any) -> berth.Claim:
        """Return a claim for ``with``. Its options are those of :class:`berth.Claim`."""
        return berth.Claim(pools, client=self.get_conn(), **options)

    def continued(self, slots: Mapping[str, Any], **options: Any) -> berth.Claim:
        """Return the claim of a :class:`BerthSensor`, whose XCom is ``slots``, for ``with``."""
        arguments = {"client_token": _token(slots["id"]), "client": self.get_conn(), **slots, **options}
        return _Continued(**arguments)


class _Continued(berth.Claim):
    """The claim of a sensor. When it is released, its client token is of no further use."""

    def release(self) -> None:
        own = self._own
        super().release()
        if own:
            _forget(self.id)


class BerthSensor(BaseSensorOperator):  # type: ignore[misc]
    """Waits for slots in the sidecar, and takes them for the tasks that follow.

    Its mode is ``reschedule``: it needs a worker slot only while it polls. Its XCom is what
    :meth:`BerthHook.continued` needs. ``ttl`` must be longer than ``poke_interval``, and than the time
    until a task continues the claim: if none does, the claim ends then.
    """

    template_fields = ("pools",)

    def __init__(self, pools: berth.Slots, ttl: berth.Duration = "10m", priority: int = 0, berth_conn_id: Optional[str] = None, **kwargs: Any) -> None:
        kwargs.setdefault("mode", "reschedule")
        super().__init__(**kwargs)
        self.pools, self.ttl, self.priority, self.berth_conn_id = pools, ttl, priority, berth_conn_id
        if berth.seconds(ttl, "ttl") <= berth.seconds(self.poke_interval):
            raise ValueError(f"ttl: {ttl!r} must be longer than the poke_interval of {self.poke_interval} s, or the claim ends between two polls")

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """Ask for the slots. They are taken when this returns a true value."""
        slots = claim_of(context, self.pools, self.ttl, self.priority)
        info = BerthHook(self.berth_conn_id).claim(**slots, client_token=_token(slots["id"]), wait=self.timeout).poll()
        self.log.info("claim %s is %s: %s", slots["id"], info["status"], info.get("reason", ""))
        return PokeReturnValue(is_done=info["status"] == "held", xcom_value=slots)

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Poll until the slots are taken. An attempt that has failed does not poll its claim again."""
        try:
            return super().execute(context)
        except AirflowRescheduleException:
            raise
        except BaseException:
            _forget(claim_of(context, self.pools, self.ttl)["id"])
            raise


# The client token of a claim is random, and all processes of an attempt need it. XComs do not keep
# it: the next poll begins without those of the last one, and users see them. Variables do: Airflow
# encrypts them, and masks those with "token" in the name in lists and logs.
_VARIABLE = "berth_client_token."


def _token(id: str) -> str:
    """Return the client token of a claim. The first call makes it."""
    token = Variable.get(_VARIABLE + id, None)
    if not token:
        token = secrets.token_hex(16)
        Variable.set(_VARIABLE + id, token)
    return str(token)


def _forget(id: str) -> None:
    """Delete the client token of a claim."""
    Variable.delete(_VARIABLE + id)


def claim_of(context: Mapping[str, Any], pools: berth.Slots, ttl: berth.Duration, priority: int = 0) -> Dict[str, Any]:
    """Return the arguments of the claim of a task instance: the same for each of its polls.

    They are shown to users, and have no secrets: :func:`_token` has the client token.
    """
    ti = context["ti"]
    return {
        "pools": dict(pools),
        "id": unique_id("airflow", ti.dag_id, ti.run_id, ti.task_id, str(getattr(ti, "map_index", -1)), str(ti.try_number)),
        "ttl": ttl,
        "priority": priority,
        "run_id": unique_id(ti.dag_id, ti.run_id),
        "step_key": name_of(ti.task_id),
        "labels": {"dag": label(ti.dag_id), "task": label(ti.task_id)},
    }
