"""Prefect: contexts that hold slots in flows and tasks."""

from typing import Any, Dict

from prefect.runtime import flow_run, task_run

import berth
from berth.names import label, name_of


def slots(pools: berth.Slots, **options: Any) -> berth.Claim:
    """Return a claim for ``with``, named after the flow run and the task run that call it.

    The options are those of :class:`berth.Claim`.
    """
    return berth.Claim(pools, **_named(options))


def slots_async(pools: berth.Slots, **options: Any) -> berth.aio.claim:
    """Return a claim for ``async with``: the twin of :func:`slots`."""
    return berth.aio.claim(pools, **_named(options))


def _named(options: Dict[str, Any]) -> Dict[str, Any]:
    # Outside of a run these are None.
    names = {"run_id": flow_run.id, "step_key": task_run.name}
    for option, name in names.items():
        if name:
            options.setdefault(option, name_of(str(name)))
    if flow_run.flow_name:
        options.setdefault("labels", {"flow": label(str(flow_run.flow_name))})
    return options
