"""Execute instances of external steps: take them, renew them, finish them."""

import os
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Callable, ClassVar, FrozenSet, Mapping, Optional

from .client import ANSWER_TIMEOUT, PATIENCE, Client, path_of
from .errors import BerthError, ClaimLost, NoCapacity
from .held import Held, log
from .values import Duration, StepInstance, now, optional_text, seconds, text, without_none

# How long the first of the instances that are ready may wait for its slots, and the pause after
# other executors have taken all of them.
_SLOTS_WAIT, _PAUSE = 10.0, 0.2
_READY_WAIT = 30.0
_MAX_ERROR = 4096
# After these errors of a take, another instance may be taken.
_NEXT = frozenset({"step_taken", "step_ended", "step_not_found", "run_ended", "run_not_found"})


class Work(Held["Work"]):
    """An instance of an external step, which is taken on entering the context, and finished on leaving it.

    It has failed if the block raises, and otherwise succeeded, with ``output``. If its run was
    canceled meanwhile, :meth:`check` raises :class:`ClaimLost`, and it is finished as canceled.
    """

    _ended = frozenset({"run_ended", "step_ended"})
    _over: ClassVar[FrozenSet[str]] = _ended | {"step_lost", "step_not_found", "run_not_found", "not_holder"}
    _lost_code = "step_lost"

    def __init__(
        self,
        run: str,
        step: str,
        index: int = 0,
        wait: Optional[Duration] = None,
        ttl: Optional[Duration] = None,
        executor: Optional[str] = None,
        on_lost: Optional[Callable[["Work"], None]] = None,
        client: Optional[Client] = None,
    ) -> None:
        super().__init__(on_lost)
        self.run_id, self.step, self.index = run, step, index
        self.executor = executor or uuid.uuid4().hex
        self.fence = 0
        """The fencing token: larger for every later attempt."""
        self.input: Any = None
        """The input of the instance."""
        self.output = ""
        """What it has written, of which the last 16 KiB are kept."""
        self.exit_code: Optional[int] = None
        self.info: StepInstance = {}
        """The instance as it was taken."""
        self._wait = None if wait is None else seconds(wait, "wait")
        self._ttl = optional_text(ttl, "ttl")
        self.client = client or Client()

    def __enter__(self) -> "Work":
        self._pid = os.getpid()
        body = without_none(executor=self.executor, ttl=self._ttl, wait=None if self._wait is None else text(self._wait))
        sent = now()
        # Without a wait here, it is that of the sidecar, which is a year at most.
        most = 366 * 86400 if self._wait is None else self._wait
        answer = self.client.call("POST", self._path("take"), body, timeout=most + ANSWER_TIMEOUT, patience=most + PATIENCE).json(fence=int)
        self.info, self.fence, self.input = answer, answer["fence"], answer.get("input")
        self._hold(answer, sent)
        return self

    def __exit__(self, kind: Optional[type], err: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if not self._own:
            return
        lost = self._lost()
        self._stop()
        if lost is not None:
            if lost.code in self._ended:
                self._finish("canceled", None)
            if kind is None:
                raise lost
        elif err is not None:
            self._finish("failed", _sendable(f"{type(err).__name__}: {err}"[:_MAX_ERROR]))
        else:
            self._finish("succeeded", None)

    def _finish(self, status: str, error: Optional[str]) -> None:
        body = without_none(fence=self.fence, status=status, error=error, exit_code=self.exit_code, output=_sendable(self.output))
        self.client.call("POST", self._path("finish"), body)

    def _path(self, verb: str) -> str:
        return path_of("runs", self.run_id, "steps", self.step, self.index, verb)

    def _name(self) -> str:
        return f"step {self.step}[{self.index}] of run {self.run_id}"

    def _renew(self, timeout: float) -> Mapping[str, Any]:
        answer = self.client.once("POST", self._path("renew"), {"fence": self.fence}, timeout=timeout, interrupt=self._interrupt)
        renewed: Mapping[str, Any] = answer.json()
        return renewed


def _sendable(text: str) -> str:
    """Return a text in which half surrogates, as in names of files that are not UTF-8, are spelled out: the sidecar refuses them."""
    return text.encode("utf-8", "backslashreplace").decode()


def execute(
    function: Callable[[Work], Optional[str]],
    queue: str = "default",
    wait: Optional[Duration] = None,
    ttl: Optional[Duration] = None,
    stop: Optional[threading.Event] = None,
    client: Optional[Client] = None,
) -> int:
    """Call a function with each instance of a queue, one at a time, and return how many there were.

    The text that it returns is the output of the instance; if it raises, the instance has failed.
    It returns when no instance could be taken for ``wait`` (None for never), or when ``stop`` is set,
    which is checked between two instances and at least every 30 seconds.
    """
    client = client or Client()
    idle = None if wait is None else seconds(wait, "wait")
    done, since = 0, now()
    while stop is None or not stop.is_set():
        left = _READY_WAIT if idle is None else since + idle - now()
        if left < 0:
            return done
        ready = client.steps.ready(queue, min(left, _READY_WAIT))
        # If all of them lack slots, the first waits for its own.
        tries = [(one, 0.0) for one in ready] + [(one, min(left, _SLOTS_WAIT)) for one in ready[:1]]
        if any(_try(function, Work(one["run_id"], one["step"], one["index"], most, ttl, client=client)) for one, most in tries):
            done, since = done + 1, now()
        elif ready:
            time.sleep(_PAUSE)
    return done


def _try(function: Callable[[Work], Optional[str]], work: Work) -> bool:
    """Take an instance, and call the function with it. Return whether it could be taken."""
    try:
        with work:
            work.output = function(work) or ""
    except Exception as err:
        if work.fence:
            log.warning("%s: %s", work._name(), err)  # it is reported to berth as well
        elif not (isinstance(err, NoCapacity) or isinstance(err, BerthError) and err.code in _NEXT):
            raise
    return work.fence != 0
