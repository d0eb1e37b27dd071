"""The interface of Airflow's variables that the integration uses."""

from typing import Any, Dict

VARIABLES: Dict[str, str] = {}


class Variable:
    @classmethod
    def get(cls, key: str, default_var: Any) -> Any:
        return VARIABLES.get(key, default_var)

    @classmethod
    def set(cls, key: str, value: str) -> None:
        VARIABLES[key] = value

    @classmethod
    def delete(cls, key: str) -> int:
        return int(VARIABLES.pop(key, None) is not None)
