"""The interface of prefect.runtime that the integration uses: attributes, None outside of a run."""

from types import SimpleNamespace

flow_run = SimpleNamespace(id=None, name=None, flow_name=None)
task_run = SimpleNamespace(id=None, name=None)
