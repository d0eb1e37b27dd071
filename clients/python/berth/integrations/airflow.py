"""Airflow: a hook that claims, and a sensor that waits for slots without a worker slot.

The fields of the Airflow connection are those of a sidecar: ``host`` is its address, such as
``https://berth.example.org:7420`` or ``unix:///run/berth/berth.sock``, ``password`` the token, and the extra
fields ``cacert``, ``cert`` and ``key`` are paths of PEM files. Without a connection the environment
(``BERTH_SIDECAR`` and the others) is used.
"""

import hashlib
import re
from typing import Any, Dict, Mapping, Optional

import berth

try:  # the places of Airflow 3
    from airflow.sdk.bases.hook import BaseHook
    from airflow.sdk.bases.sensor import BaseSensorOperator, PokeReturnValue
except ImportError:
    from airflow.hooks.base import BaseHook
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
        return self.claim(**{**slots, **options})


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
        info = BerthHook(self.berth_conn_id).claim(**slots, wait=self.timeout).poll()
        self.log.info("claim %s is %s: %s", slots["id"], info["status"], info.get("reason", ""))
        return PokeReturnValue(is_done=info["status"] == "held", xcom_value=slots)


def claim_of(context: Mapping[str, Any], pools: berth.Slots, ttl: berth.Duration, priority: int = 0) -> Dict[str, Any]:
    """Return the arguments of the claim of a task instance: the same for each of its polls."""
    ti = context["ti"]
    parts = ("airflow", ti.dag_id, ti.run_id, ti.task_id, str(getattr(ti, "map_index", -1)), str(ti.try_number))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", ".".join(parts))
    return {
        "pools": dict(pools),
        "id": _short(name),
        # Tasks of one claim must show the same. With a token in the connection berth knows them anyway.
        "client_token": _short(name),
        "ttl": ttl,
        "priority": priority,
        "run_id": _short(re.sub(r"[^A-Za-z0-9._-]", "_", f"{ti.dag_id}.{ti.run_id}")),
        "step_key": _short(ti.task_id),
        "labels": {"dag": ti.dag_id[:128], "task": ti.task_id[:128]},
    }


def _short(name: str) -> str:
    """Return a name of at most 128 characters, which is still unique."""
    if len(name) <= 128:
        return name
    return name[:80] + "." + hashlib.sha256(name.encode()).hexdigest()[:32]
