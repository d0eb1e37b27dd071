"""Claims: wait for slots, hold them while they are renewed, release them."""

import contextvars
import functools
import inspect
import os
import secrets
import uuid
from types import TracebackType
from typing import Any, Callable, ClassVar, Dict, FrozenSet, Mapping, Optional, Type, TypeVar, cast
from urllib.parse import quote

from .client import ANSWER_TIMEOUT, PATIENCE, Client, path_of, pause_after
from .errors import BerthError, ClaimLost, Unavailable, invalid, timed_out
from .held import Held, log
from .transport import Interrupt, Interrupted
from .values import ClaimInfo, Duration, Slots, now, seconds, text, without_none

DEFAULT_WAIT = "10m"
# A release is tried again while the claim is valid, for this many seconds at most.
_RELEASE_PATIENCE = 30.0
_WITHDRAW_PATIENCE = 5.0
# The server ends the stream of events if nothing was sent for this many seconds.
_STREAM_TIMEOUT, _STREAM_PAUSE = 120.0, 5.0


class Claim(Held["Claim"]):
    """Slots of pools, which are claimed on entering the context, and released on leaving it.

    ``wait`` is the longest time to wait for the slots (``BERTH_CLAIM_TIMEOUT``, or 10 minutes), 0
    for not at all. ``ttl`` is the time within which the claim must be renewed (the lease of the
    pools). ``on_lost`` is called once if the claim is lost, mostly in the thread that renews it.
    ``client`` is the sidecar to use; by default the one of the environment. The other arguments
    are those of the HTTP API. A claim can be used once.
    """

    _over: ClassVar[FrozenSet[str]] = frozenset({"claim_lost", "claim_revoked", "claim_not_found", "not_holder"})
    _lost_code = "claim_lost"

    def __init__(
        self,
        pools: Slots,
        wait: Optional[Duration] = None,
        ttl: Optional[Duration] = None,
        priority: int = 0,
        id: Optional[str] = None,
        client_token: Optional[str] = None,
        run_id: str = "",
        step_key: str = "",
        labels: Optional[Mapping[str, str]] = None,
        on_lost: Optional[Callable[["Claim"], None]] = None,
        client: Optional[Client] = None,
    ) -> None:
        super().__init__(on_lost)
        if not isinstance(pools, Mapping) or not pools:
            raise invalid("pools", f'{pools!r} names no pool: write the slots of each pool, such as {{"db": 2}}')
        self.pools = dict(pools)
        self.wait = seconds(_usual_wait() if wait is None else wait, "wait")
        self.ttl = None if ttl is None else seconds(ttl, "ttl")
        self.priority, self.run_id, self.step_key, self.labels = priority, run_id, step_key, dict(labels or {})
        # A generated id is nobody else's: it can be withdrawn without a fence.
        self._generated = id is None
        self.id = uuid.uuid4().hex if id is None else id
        if not self.id:  # the sidecar would choose another one, and nothing would renew its claim
            raise invalid("id", "it is empty: leave it out, and one is generated")
        self.client_token = secrets.token_hex(16) if client_token is None else client_token
        if not self.client_token.isprintable() or self.client_token.strip() != self.client_token:
            raise invalid("client_token", "it must be one line of text, which does not begin or end with a space")
        self.fence = 0
        """The fencing token: larger for every later holder of a pool of one slot."""
        self.info: ClaimInfo = {}
        """The last answer of the sidecar about the claim."""
        self._given_client = client
        self._asked = False  # whether the sidecar may have received the request
        self._binding: Dict[str, Any] = {}  # the process whose life it is bound to

    @functools.cached_property
    def client(self) -> Client:
        """The client of the sidecar."""
        return self._given_client or Client()

    def acquire(self, interrupt: Optional[Interrupt] = None) -> "Claim":
        """Wait for the slots. If that fails or is interrupted, nothing is held and nothing waits."""
        if self._pid:
            raise RuntimeError("a claim can be used once: make another one")
        self._pid = os.getpid()
        try:
            answer, sent = self._ask(interrupt or Interrupt())
            self.info, self.fence = answer, answer["fence"]
            self._hold(answer, sent)
            self._spawn(self._follow)
        except BaseException as err:
            self._stop()
            refused = isinstance(err, BerthError) and not isinstance(err, Unavailable)
            if self.fence or self._asked and not refused:
                self._withdraw()
            raise
        return self

    def poll(self) -> ClaimInfo:
        """Claim the slots without waiting for them here, and return the claim as it is now.

        The sidecar waits for up to ``wait``. The status of the answer is ``waiting`` or ``held``.
        Call it again at least once per ``ttl``: each call renews a claim that is held. It needs
        an ``id``. To use the claim then, enter the context with the same arguments.
        """
        if self._generated:
            raise invalid("id", "it is missing: choose one, so that the next call finds the claim")
        try:
            info = self.client.claims.get(self.id)
        except BerthError as err:
            if err.code not in ("claim_not_found", "claim_lost"):
                raise
            info = {}
        if info.get("status") == "waiting":
            return info
        headers = {**self._headers(), "Prefer": "respond-async"}
        info = self.client.call("POST", path_of("claims"), self._body(self.wait), headers).json(status=str)
        if info["status"] == "held":
            self.fence = info["fence"]
            info = self._renew(ANSWER_TIMEOUT)
        return info

    def release(self) -> None:
        """Release the slots, and return when they are free. A forked process releases nothing."""
        if not self._own:
            return
        self._stop()
        self._delete(max(0.0, min(self.valid_for, _RELEASE_PATIENCE)))

    def __enter__(self) -> "Claim":
        return self.acquire()

    def __exit__(self, kind: Optional[Type[BaseException]], err: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if not self._own:
            return
        lost = self._lost()
        try:
            self.release()
        except BerthError as failed:
            log.warning("%s could not be released; its slots are free when its lease ends: %s", self._name(), failed)
        if lost is not None and kind is None:
            raise lost

    def _name(self) -> str:
        return f"claim {self.id}"

    def _headers(self) -> Dict[str, str]:
        return {"Berth-Client-Token": self.client_token} if self.client_token else {}

    def _body(self, wait: float) -> Dict[str, Any]:
        return without_none(
            id=self.id,
            pools=self.pools,
            priority=self.priority,
            wait=text(wait),
            ttl=None if self.ttl is None else text(self.ttl),
            client_token=self.client_token,
            run_id=self.run_id,
            step_key=self.step_key,
            labels=self.labels,
            **self._binding,
        )

    def _ask(self, interrupt: Interrupt) -> Any:
        """Send the request, again if an answer is lost or the sidecar is away. Return the answer, and when it was sent."""
        begun, attempt = now(), 0
        while True:
            sent = now()
            left = max(0.0, begun + self.wait - sent)
            before, self._asked = self._asked, True
            try:
                answer = self.client.once("POST", path_of("claims"), self._body(left), self._headers(), left + ANSWER_TIMEOUT, interrupt)
                return answer.json(fence=int), sent
            except Unavailable as err:
                self._asked = before or err.sent or err.status != 0
                if err.permanent:
                    raise
                # The claim may be held if its answer was lost, however short the wait.
                end = begun + (max(self.wait, PATIENCE) if err.sent else self.wait)
                if now() >= end:
                    if self.wait == 0:
                        raise
                    raise timed_out(err, self.wait) from err
                if attempt == 0 and not err.sent:
                    log.warning("waiting for up to %.3g s: %s", end - now(), err.detail)
                interrupt.sleep(pause_after(err, attempt, end - now()))
                attempt += 1

    def _renew(self, timeout: float) -> ClaimInfo:
        self.info = self._send_renewal(timeout)
        return self.info

    def _send_renewal(self, timeout: float, **binding: Any) -> Any:
        body = {"fence": self.fence, **binding}
        return self.client.once("POST", path_of("claims", self.id, "renew"), body, self._headers(), timeout, self._interrupt).json()

    def _withdraw(self) -> None:
        """Leave the wait queue, or release what was granted meanwhile.

        The end of the connection has done that already, but keeps the place of the request for
        10 seconds. A claim of an id that was chosen, and without a fence, may be another
        client's: there that has to do.
        """
        if self.fence or self._generated:
            try:
                self._delete(_WITHDRAW_PATIENCE)
            except BerthError as err:
                log.debug("%s could not be withdrawn: %s", self._name(), err)

    def _delete(self, patience: float) -> None:
        path = path_of("claims", self.id) + (f"?fence={self.fence}" if self.fence else "")
        self.client.call("DELETE", path, headers=self._headers(), timeout=max(patience, _WITHDRAW_PATIENCE), patience=patience)

    def _follow(self) -> None:
        """Follow the events of the claim, and renew it at once when there is one: it may have been revoked."""
        path, first = f"/v1/events?claim={quote(self.id, safe='')}", True
        while not self._stopped and self._reason is None:
            try:
                for _ in self.client.transport.events(path, self._headers(), _STREAM_TIMEOUT, self._interrupt):
                    if not first:  # that is the greeting of the stream
                        self._wake.set()
                    first = False
            except Interrupted:
                return
            except BerthError as err:
                log.debug("the events of %s can't be followed: %s", self._name(), err)  # it is renewed anyway
            self._interrupt.wait(_STREAM_PAUSE)


claim = Claim


def _usual_wait() -> str:
    return os.environ.get("BERTH_CLAIM_TIMEOUT") or DEFAULT_WAIT


_current: "contextvars.ContextVar[Claim]" = contextvars.ContextVar("berth_claim")


def current() -> Claim:
    """Return the claim of the innermost call of a function that :func:`limited` decorates."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("no function of berth.limited is running here") from None


F = TypeVar("F", bound=Callable[..., Any])


def limited(pools: Slots, **options: Any) -> Callable[[F], F]:
    """Claim slots for each call of a function, plain or async. The options are those of :class:`Claim`.

    :func:`current` returns the claim within the function.
    """
    Claim(pools, **options)  # bad arguments are refused here

    def decorate(function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("berth.limited can't hold slots for a generator: claim them within it")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with Claim(pools, **options) as held:
                token = _current.set(held)
                try:
                    return function(*args, **kwargs)
                finally:
                    _current.reset(token)

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            from . import aio

            async with aio.claim(pools, **options) as held:
                token = _current.set(held)
                try:
                    return await function(*args, **kwargs)
                finally:
                    _current.reset(token)

        return cast(F, call_async if inspect.iscoroutinefunction(function) else call)

    return decorate
