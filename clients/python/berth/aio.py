"""Claims for asyncio. Requests run in threads of their own, which a cancellation ends."""

import asyncio
import threading
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar

from .claims import Claim
from .transport import Interrupt
from .values import Slots

T = TypeVar("T")


class claim:
    """The twin of :class:`berth.Claim` for ``async with``.

    If the claim is lost, the task in the block is canceled, and the block raises
    :class:`berth.ClaimLost`. A cancellation during the wait leaves the wait queue.
    """

    def __init__(self, pools: Slots, **options: Any) -> None:
        on_lost: Optional[Callable[[Claim], None]] = options.pop("on_lost", None)

        def lost(held: Claim) -> None:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._cancel)
            if on_lost is not None:
                on_lost(held)

        self._claim = Claim(pools, on_lost=lost, **options)
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._task: "Optional[asyncio.Task[Any]]" = None  # in the block
        self._canceled, self._cancelings = False, 0

    async def __aenter__(self) -> Claim:
        self._loop = asyncio.get_running_loop()
        interrupt = Interrupt()
        try:
            await _in_thread(lambda: self._claim.acquire(interrupt), interrupt)
        except asyncio.CancelledError:
            if self._claim.fence:  # it was granted at the same moment
                await _in_thread(lambda: self._claim.__exit__(asyncio.CancelledError, None, None))
            raise
        if self._claim.lost.is_set():
            await _in_thread(lambda: self._claim.__exit__(None, None, None))  # which raises
        self._task = asyncio.current_task()
        self._cancelings = _cancelings(self._task)
        return self._claim

    async def __aexit__(self, kind: Optional[Type[BaseException]], err: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        task, self._task = self._task, None
        if self._canceled and task is not None:
            if hasattr(task, "uncancel"):
                task.uncancel()
            # Otherwise it was canceled by another, too.
            if kind is asyncio.CancelledError and _cancelings(task) <= self._cancelings:
                kind = err = trace = None
        await _in_thread(lambda: self._claim.__exit__(kind, err, trace))

    def _cancel(self) -> None:
        if self._task is not None and not self._canceled:
            self._canceled = True
            self._task.cancel()


def _cancelings(task: "Optional[asyncio.Task[Any]]") -> int:
    """Return how often a task was canceled; 0 before Python 3.11, which does not count."""
    return int(task.cancelling()) if task is not None and hasattr(task, "cancelling") else 0


async def _in_thread(work: Callable[[], T], interrupt: Optional[Interrupt] = None) -> T:
    """Run work in a thread, and wait for its end, also after a cancellation, which interrupts it.

    The threads are its own: claims that wait in a shared pool could keep others from a release.
    """
    loop = asyncio.get_running_loop()
    done: "asyncio.Future[T]" = loop.create_future()

    def finish(result: Optional[T], err: Optional[BaseException]) -> None:
        if err is not None:
            done.set_exception(err)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result: Optional[T] = work()
            err: Optional[BaseException] = None
        except BaseException as raised:
            result, err = None, raised
        try:
            loop.call_soon_threadsafe(finish, result, err)
        except RuntimeError:
            pass  # the loop is closed

    threading.Thread(target=run, name="berth request", daemon=True).start()
    canceled: Optional[asyncio.CancelledError] = None
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError as err:
            canceled = err
            if interrupt is not None:
                interrupt()
    if canceled is not None:
        done.exception()  # it counts as seen
        raise canceled
    return done.result()
