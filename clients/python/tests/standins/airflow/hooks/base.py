"""The interface of Airflow's hooks that the integration uses."""

from types import SimpleNamespace
from typing import Any, Dict

CONNECTIONS: Dict[str, Any] = {}


class BaseHook:
    def __init__(self, logger_name: Any = None) -> None:
        pass

    @classmethod
    def get_connection(cls, conn_id: str) -> SimpleNamespace:
        return SimpleNamespace(**CONNECTIONS[conn_id])
