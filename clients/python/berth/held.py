"""What is held for a while: its validity, and the thread that renews it."""

import logging
import os
import threading
from typing import Any, Callable, ClassVar, FrozenSet, Generic, Mapping, Optional, TypeVar

from .errors import BerthError, ClaimLost
from .transport import Interrupt, Interrupted
from .values import now, seconds

log = logging.getLogger("berth")

# The longest time between two renewals, so that a claim that is lost is noticed soon; between two
# checks of the clock, since the machine may have been suspended; and after a failed renewal.
MAX_RENEW_PAUSE, _CHECK_PAUSE, _RETRY_PAUSE = 10.0, 1.0, 0.5
# A request that took this long is renewed at once: its answer states too short a validity.
LONG_REQUEST = 1.0
_RENEW_TIMEOUT = 10.0

H = TypeVar("H", bound="Held[Any]")


class Held(Generic[H]):
    """A claim, or a step instance, that a thread renews until it is released or lost.

    It is lost when an answer says so, or when no more of its validity is left than ``grace``, the
    time that stopping may take. That is final.
    """

    _over: ClassVar[FrozenSet[str]]
    _lost_code: ClassVar[str]

    def __init__(self, on_lost: Optional[Callable[[H], None]]) -> None:
        self.lost = threading.Event()
        """Set when the claim is lost."""
        self._on_lost = on_lost
        self._pid = 0  # of the process that holds it
        self._deadline, self._grace, self._every = 0.0, 0.0, MAX_RENEW_PAUSE
        self._reason: Optional[ClaimLost] = None
        self._losing = threading.Lock()  # only taken in the process that holds it
        self._wake, self._stopped, self._interrupt = threading.Event(), False, Interrupt()

    @property
    def valid_for(self) -> float:
        """How many seconds the holder may act as one, unless it is renewed; 0 if it is not valid."""
        return max(0.0, self._deadline - now())

    @property
    def grace(self) -> float:
        """How many seconds stopping may take. The claim is lost that long before its validity ends."""
        return self._grace

    def check(self) -> None:
        """Raise :class:`ClaimLost` if the work must stop."""
        lost = self._lost()
        if lost is not None:
            raise lost

    def _lost(self) -> Optional[ClaimLost]:
        """Return why the work must stop, or None."""
        if self._reason is None and self.valid_for <= self._grace and self._own:
            self._lose(self._late())
        if self._reason is None and self.valid_for <= self._grace:  # in a forked process
            return self._late()
        return self._reason

    @property
    def _own(self) -> bool:
        return self._pid == os.getpid()

    def _late(self) -> ClaimLost:
        return ClaimLost(self._lost_code, f"{self._name()} could not be renewed in time")

    def _name(self) -> str:
        raise NotImplementedError

    def _renew(self, timeout: float) -> Mapping[str, Any]:
        """Send one renewal, and return the answer."""
        raise NotImplementedError

    def _extend(self, answer: Mapping[str, Any], sent: float) -> None:
        """Take the validity of the answer to a request that was sent then."""
        self._deadline = max(self._deadline, sent + seconds(answer.get("valid_for", 0)))
        self._grace = seconds(answer.get("grace", 0))
        times = [seconds(answer[name]) for name in ("ttl", "lease_duration") if name in answer]
        self._every = min([t / 3 for t in times if t > 0] + [MAX_RENEW_PAUSE])

    def _hold(self, answer: Mapping[str, Any], sent: float) -> None:
        """Begin to renew what the answer says is held."""
        self._extend(answer, sent)
        if now() - sent >= LONG_REQUEST:
            try:
                self._renew_once()
            except BerthError as err:
                log.debug("%s could not be renewed: %s", self._name(), err)  # the thread tries again
        self._spawn(self._keep)

    def _spawn(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=f"berth {self._name()}", daemon=True).start()

    def _renew_once(self) -> None:
        sent = now()
        # Connecting and reading may take that long each.
        left = min(self.valid_for - self._grace, _RENEW_TIMEOUT)
        try:
            self._extend(self._renew(max(left / 2, 0.01)), sent)
        except BerthError as err:
            if err.code in self._over and not self._stopped:
                self._lose(err if isinstance(err, ClaimLost) else ClaimLost(err.code, err.detail, err.status, err.fields))
            raise

    def _keep(self) -> None:
        """Renew it, until it is lost or released."""
        at = now() + self._every
        while not self._stopped and self._reason is None:
            left = self.valid_for - self._grace
            if left <= 0:
                self._lose(self._late())
                return
            if self._wake.wait(max(0.0, min(at - now(), left, _CHECK_PAUSE))):
                self._wake.clear()
                at = now()
            if now() < at or self._stopped:
                continue
            try:
                self._renew_once()
                at = now() + self._every
            except Interrupted:
                return
            except BerthError as err:
                log.debug("%s could not be renewed: %s", self._name(), err)
                at = now() + min(_RETRY_PAUSE, self._every / 2)

    def _lose(self, reason: ClaimLost) -> None:
        with self._losing:
            if self._reason is not None or self._stopped:
                return
            self._deadline = min(self._deadline, now() + self._grace)
            self._reason = reason
        self.lost.set()
        if self._on_lost is not None:
            try:
                self._on_lost(self)  # type: ignore[arg-type]
            except Exception:
                log.exception("on_lost of %s failed", self._name())

    def _stop(self) -> None:
        """End the renewals."""
        self._stopped = True
        self._wake.set()
        self._interrupt()
