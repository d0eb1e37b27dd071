"""The interface of Dagster that the integration uses: a resource takes its annotated fields."""

from typing import Any


class ConfigurableResource:
    def __init__(self, **fields: Any) -> None:
        for name in type(self).__annotations__:
            setattr(self, name, fields.pop(name, getattr(type(self), name)))
        if fields:
            raise TypeError(f"unknown fields: {sorted(fields)}")
