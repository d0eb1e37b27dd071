"""Durations, the clock, and the types of answers."""

import re
import sys
import time
from datetime import timedelta
from typing import Any, Dict, List, Mapping, Optional, TypedDict, Union

from .errors import invalid

Duration = Union[str, int, float, timedelta]
"""A duration: seconds, a timedelta, or a text such as ``"30s"``, ``"10m"`` or ``"1h30m"``."""

Slots = Mapping[str, int]
"""How many slots of each pool."""

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s|us|µs|ns)")


def seconds(duration: Duration, field: str = "duration") -> float:
    """Return a duration in seconds. ``field`` is what an error calls it."""
    if isinstance(duration, timedelta):
        total = duration.total_seconds()
    elif isinstance(duration, str):
        total, end = 0.0, 0
        for part in _PART.finditer(duration):
            if part.start() != end:
                break
            total, end = total + float(part[1]) * _UNITS[part[2]], part.end()
        if duration == "0":
            end = 1
        if not duration or end != len(duration):
            raise invalid(field, f"{duration!r} is no duration: write seconds, or a text such as 30s, 10m or 1h30m")
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        total = float(duration)
    else:
        raise invalid(field, f"{duration!r} is no duration: write seconds, or a text such as 30s, 10m or 1h30m")
    if not 0 <= total < 1e10:
        raise invalid(field, f"{duration!r} is out of range: it must be 0 or more, and at most a year")
    return total


def text(duration: Duration, field: str = "duration") -> str:
    """Return a duration as the HTTP API reads it, in whole milliseconds."""
    return f"{round(seconds(duration, field) * 1000)}ms"


def _boot_clock() -> int:
    """Return the clock that also counts while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.CLOCK_BOOTTIME
    return time.CLOCK_MONOTONIC  # on macOS it counts through suspend


_CLOCK = None if sys.platform == "win32" else _boot_clock()


def now() -> float:
    """Return the seconds of a clock that never goes back. On Linux and macOS it counts through suspend."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


# The types of answers list the fields that programs need most. An answer may have others: see
# the OpenAPI document. All fields may be missing, and times are RFC 3339.


class Holder(TypedDict, total=False):
    """A holder of slots of a pool."""

    claim: str
    host: str
    instance: str
    claimed_by: str
    run_id: str
    step_key: str
    pid: int
    labels: Dict[str, str]
    slots: int
    since: str
    expires_in: str
    fence: int


class Waiter(TypedDict, total=False):
    """A claim that waits for a pool."""

    claim: str
    host: str
    instance: str
    claimed_by: str
    run_id: str
    step_key: str
    labels: Dict[str, str]
    slots: int
    position: int
    priority: int
    since: str
    reason: str


class Pool(TypedDict, total=False):
    """A pool; ``holders`` and ``waiters`` only of one that is read by name."""

    name: str
    status: str
    limit: int
    claimed: int
    waiting: int
    lease_duration: str
    reserve_after: str
    paused: bool
    survives: str
    holders: List[Holder]
    waiters: List[Waiter]


class ClaimInfo(TypedDict, total=False):
    """A claim of any host."""

    id: str
    status: str
    pools: Dict[str, int]
    priority: int
    host: str
    instance: str
    claimed_by: str
    run_id: str
    step_key: str
    labels: Dict[str, str]
    fence: int
    claimed_at: str
    queued_at: str
    valid_for: str
    valid_until: str
    grace: str
    lease_duration: str
    ttl: str
    position: int
    reason: str


class Reason(TypedDict, total=False):
    """Why a claim waits."""

    text: str
    position: int
    waiting: int
    since: str
    pools: List[Dict[str, Any]]
    holders: List[Dict[str, Any]]


class Why(TypedDict, total=False):
    """A claim, and why it waits."""

    claim: ClaimInfo
    reason: Reason


class Executor(TypedDict, total=False):
    """The executor of a run or a step instance."""

    host: str
    instance: str
    name: str
    by: str


class Run(TypedDict, total=False):
    """A run."""

    id: str
    name: str
    status: str
    tags: Dict[str, str]
    labels: Dict[str, str]
    owner: str
    submitted_by: str
    priority: int
    retries: int
    pools: Dict[str, int]
    steps: int
    block_reason: str
    block_kind: str
    queued_at: str
    admitted_at: str
    started_at: str
    ended_at: str
    attempt: int
    executor: Executor
    error: str


class RunWhy(TypedDict, total=False):
    """What a run waits for."""

    run: Run
    reason: str
    position: int
    waiting: int
    in_the_way: List[Run]
    estimate: str
    steps: List[Dict[str, Any]]


class RunEvent(TypedDict, total=False):
    """Something that has happened to a run."""

    type: str
    at: str
    by: str
    reason: str
    metadata: Dict[str, str]
    revision: int


class Step(TypedDict, total=False):
    """A step of a run, with its instances counted by status."""

    name: str
    needs: List[str]
    count: int
    queue: str
    pools: Dict[str, int]
    external: bool
    counts: Dict[str, int]
    block_reason: str
    block_kind: str


class StepInstance(TypedDict, total=False):
    """An instance of a step; what it is to do only of one that is read or taken by itself."""

    run_id: str
    step: str
    index: int
    status: str
    attempt: int
    executor: Executor
    exit_code: int
    error: str
    fence: int
    queue: str
    pools: Dict[str, int]
    external: bool
    command: List[str]
    env: Dict[str, str]
    input: Any
    timeout: str


def without_none(**fields: Any) -> Dict[str, Any]:
    """Return the fields that are given."""
    return {k: v for k, v in fields.items() if v is not None}


def optional_text(duration: Optional[Duration], field: str) -> Optional[str]:
    """Return a duration as the HTTP API reads it; None if it is not given."""
    return None if duration is None else text(duration, field)
