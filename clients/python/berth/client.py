"""The client of one sidecar: pools, claims of all hosts, runs and steps."""

import random
import time
import uuid
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union, cast
from urllib.parse import quote, urlencode

from .errors import BerthError, Unavailable
from .transport import Answer, Interrupt, Transport, settings
from .values import (
    ClaimInfo,
    Duration,
    Pool,
    Run,
    RunEvent,
    RunWhy,
    Slots,
    Step,
    StepInstance,
    Why,
    now,
    optional_text,
    seconds,
    text,
    without_none,
)

# How long an answer may take that waits for nothing, and how long after the first try a
# request is sent again whose answer was lost, or which was refused for the time being.
ANSWER_TIMEOUT = 30.0
PATIENCE = 10.0
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 2.0
# Runs that have ended.
ENDED = frozenset({"succeeded", "failed", "canceled"})
_PAGE = "1000"


def pause_after(err: Unavailable, attempt: int, left: float) -> float:
    """Return how long to wait before a request is sent again, at most ``left``."""
    pause = min(_FIRST_PAUSE * 2.0**attempt, _MAX_PAUSE) * random.uniform(0.5, 1.0)
    return min(max(pause, err.retry_after or 0.0), left)


def path_of(*parts: Union[str, int]) -> str:
    """Return the path of what the names lead to."""
    return "/v1/" + "/".join(quote(str(p), safe="", errors="surrogatepass") for p in parts)


class Client:
    """Calls the HTTP API of one sidecar.

    Arguments that are None are read from the environment, as by ``berth``: ``BERTH_SIDECAR``
    (``http://127.0.0.1:7420`` if it is not set), ``BERTH_TOKEN`` or ``BERTH_TOKEN_FILE``,
    ``BERTH_SIDECAR_CACERT``, ``BERTH_SIDECAR_CERT``, ``BERTH_SIDECAR_KEY`` and ``BERTH_INSECURE``.
    A token is sent over plain HTTP to another host only with ``insecure``: others can read it there.

    A client has no connection of its own. Threads and forked processes may share it. A request
    whose answer is lost is sent again: every request of this client may be repeated.
    """

    def __init__(
        self,
        sidecar: Optional[str] = None,
        token: Optional[str] = None,
        cacert: Optional[str] = None,
        cert: Optional[str] = None,
        key: Optional[str] = None,
        insecure: Optional[bool] = None,
    ) -> None:
        self.transport = Transport(settings(sidecar, token, cacert, cert, key, insecure))
        self.pools = Pools(self)
        self.claims = Claims(self)
        self.runs = Runs(self)
        self.steps = Steps(self)

    def once(
        self,
        method: str,
        path: str,
        body: Optional[Any] = None,
        headers: Mapping[str, str] = {},
        timeout: float = ANSWER_TIMEOUT,
        interrupt: Optional[Interrupt] = None,
    ) -> Answer:
        """Send a request once."""
        return self.transport.exchange(method, path, body, headers, timeout, interrupt)

    def call(
        self,
        method: str,
        path: str,
        body: Optional[Any] = None,
        headers: Mapping[str, str] = {},
        timeout: float = ANSWER_TIMEOUT,
        patience: float = PATIENCE,
        interrupt: Optional[Interrupt] = None,
    ) -> Answer:
        """Send a request, again if that may help, until ``patience`` seconds have passed."""
        interrupt = interrupt or Interrupt()
        end, attempt = now() + patience, 0
        while True:
            try:
                return self.once(method, path, body, headers, timeout, interrupt)
            except Unavailable as err:
                left = end - now()
                if err.permanent or left <= 0:
                    raise
                interrupt.sleep(pause_after(err, attempt, left))
                attempt += 1

    def whoami(self) -> Dict[str, Any]:
        """Return who the sidecar takes this client for, and its roles."""
        return cast(Dict[str, Any], self.call("GET", "/v1/whoami").json(identity=str))

    def pages(self, path: str, query: Iterable[Tuple[str, str]]) -> Iterator[Any]:
        """Yield the items of a list, from all its pages."""
        cursor: List[Tuple[str, str]] = []
        while True:
            page = [*query, ("limit", _PAGE), *cursor]
            answer = self.call("GET", f"{path}?{urlencode(page)}").json(items=list)
            yield from answer["items"]
            if not answer.get("next"):
                return
            cursor = [("cursor", answer["next"])]


class Pools:
    """The pools."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> List[Pool]:
        """Return all pools."""
        return cast(List[Pool], self._client.call("GET", path_of("pools")).json(items=list)["items"])

    def get(self, name: str) -> Pool:
        """Return a pool with its holders and waiters."""
        return cast(Pool, self._client.call("GET", path_of("pools", name)).json(name=str))

    def set(
        self,
        name: str,
        limit: Optional[int] = None,
        lease_duration: Optional[Duration] = None,
        reserve_after: Optional[Duration] = None,
        paused: Optional[bool] = None,
    ) -> Pool:
        """Change what is given of a pool. With a ``limit``, a pool that does not exist is created.

        ``reserve_after`` may be -1 for never.
        """
        change = without_none(
            limit=limit,
            lease_duration=optional_text(lease_duration, "lease_duration"),
            reserve_after="-1" if reserve_after == -1 else optional_text(reserve_after, "reserve_after"),
            paused=paused,
        )
        try:
            return cast(Pool, self._client.call("PATCH", path_of("pools", name), change).json(name=str))
        except BerthError as err:
            if err.code != "pool_not_found" or limit is None:
                raise
        return cast(Pool, self._client.call("PUT", path_of("pools", name), change).json(name=str))

    def delete(self, name: str) -> None:
        """Delete a pool. Its holders keep their slots until they release them."""
        self._client.call("DELETE", path_of("pools", name))


class Claims:
    """The claims of all hosts. To claim slots, use :func:`berth.claim`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, pool: str = "", host: str = "", status: str = "") -> List[ClaimInfo]:
        """Return the claims that are held, the oldest first, and those that wait, in their order."""
        query = [(k, v) for k, v in (("pool", pool), ("host", host), ("status", status)) if v]
        return list(self._client.pages(path_of("claims"), query))

    def get(self, claim: str) -> ClaimInfo:
        """Return a claim."""
        return cast(ClaimInfo, self._client.call("GET", path_of("claims", claim)).json(status=str))

    def why(self, claim: str) -> Why:
        """Return a claim, and why it waits."""
        return cast(Why, self._client.call("GET", path_of("claims", claim, "why")).json(claim=dict))

    def revoke(self, claim: str, force: bool = False) -> None:
        """Revoke a claim of any host. With ``force`` its slots are free at once, although its holder may still run."""
        self._client.call("POST", path_of("claims", claim, "revoke"), {"force": force})


class Runs:
    """The runs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(
        self,
        id: Optional[str] = None,
        name: Optional[str] = None,
        tags: Optional[Mapping[str, str]] = None,
        labels: Optional[Mapping[str, str]] = None,
        owner: Optional[str] = None,
        priority: Optional[int] = None,
        retries: Optional[int] = None,
        not_before: Optional[str] = None,
        delay: Optional[Duration] = None,
        pools: Optional[Slots] = None,
        steps: Optional[Sequence[Mapping[str, Any]]] = None,
        max_concurrent_steps: Optional[int] = None,
        max_steps_per_tick: Optional[int] = None,
    ) -> Run:
        """Submit a run. A run without an id gets one, so that a repeated request finds it."""
        request = without_none(
            id=id or uuid.uuid4().hex,
            name=name,
            tags=tags,
            labels=labels,
            owner=owner,
            priority=priority,
            retries=retries,
            not_before=not_before,
            delay=optional_text(delay, "delay"),
            pools=pools,
            steps=steps,
            max_concurrent_steps=max_concurrent_steps,
            max_steps_per_tick=max_steps_per_tick,
        )
        return cast(Run, self._client.call("POST", path_of("runs"), request).json(status=str))

    def get(self, run: str) -> Run:
        """Return a run."""
        return cast(Run, self._client.call("GET", path_of("runs", run)).json(status=str))

    def list(self, statuses: Sequence[str] = (), tags: Mapping[str, str] = {}) -> List[Run]:
        """Return the runs by id; only queued ones in the order of the queue."""
        query = [("status", ",".join(statuses))] if statuses else []
        query += [("tag", f"{k}={v}") for k, v in sorted(tags.items())]
        return list(self._client.pages(path_of("runs"), query))

    def why(self, run: str) -> RunWhy:
        """Return what a run waits for."""
        return cast(RunWhy, self._client.call("GET", path_of("runs", run, "why")).json(run=dict))

    def events(self, run: str) -> List[RunEvent]:
        """Return what has happened to a run, in order."""
        return cast(List[RunEvent], self._client.call("GET", path_of("runs", run, "events")).json(items=list)["items"])

    def wait(self, run: str, timeout: Optional[Duration] = None) -> Run:
        """Wait until a run has ended, and return it. After ``timeout``, raise TimeoutError."""
        end = None if timeout is None else now() + seconds(timeout, "timeout")
        pause = _FIRST_PAUSE
        while True:
            found = self.get(run)
            if found["status"] in ENDED:
                return found
            left = pause if end is None else end - now()
            if left <= 0:
                raise TimeoutError(f"run {run} is {found['status']}, and has not ended in time")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _MAX_PAUSE)

    def cancel(self, run: str, reason: str = "", queued_only: bool = False) -> Run:
        """Cancel a run. One that was canceled already is no error."""
        body = {"reason": reason, "queued_only": queued_only}
        return cast(Run, self._client.call("POST", path_of("runs", run, "cancel"), body).json(status=str))

    def retry(self, run: str, steps: Optional[Sequence[str]] = None, reason: str = "") -> Run:
        """Queue a failed or canceled run again, or retry some of its steps and instances (``"extract[3]"``)."""
        body = without_none(steps=steps, reason=reason)
        return cast(Run, self._client.call("POST", path_of("runs", run, "retry"), body).json(status=str))

    def logs(self, run: str) -> Dict[str, str]:
        """Return the end of the output of each step instance that has some, by name, as in ``"extract[3]"``."""
        found: Dict[str, str] = {}
        for step in self._client.steps.list(run):
            for one in self._client.steps.instances(run, step["name"]):
                try:
                    found[f"{step['name']}[{one['index']}]"] = self._client.steps.log(run, step["name"], one["index"])
                except BerthError as err:
                    if err.code != "not_found":
                        raise
        return found


class Steps:
    """The steps of runs. To execute instances, use :func:`berth.execute`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, run: str) -> List[Step]:
        """Return the steps of a run."""
        return cast(List[Step], self._client.call("GET", path_of("runs", run, "steps")).json(items=list)["items"])

    def instances(self, run: str, step: str, statuses: Sequence[str] = ()) -> List[StepInstance]:
        """Return the instances of a step by index; with statuses, those of one of them."""
        query = [("status", ",".join(statuses))] if statuses else []
        return list(self._client.pages(path_of("runs", run, "steps", step), query))

    def get(self, run: str, step: str, index: int = 0) -> StepInstance:
        """Return an instance with what it is to do."""
        return cast(StepInstance, self._client.call("GET", path_of("runs", run, "steps", step, index)).json(status=str))

    def log(self, run: str, step: str, index: int = 0) -> str:
        """Return the end of the output of the last attempt; ``not_found`` if none is kept."""
        answer = self._client.call("GET", path_of("runs", run, "steps", step, index, "log"))
        return answer.body.decode("utf-8", "replace")

    def cancel(self, run: str, step: str, index: int = 0) -> StepInstance:
        """Cancel an instance. One that runs stays running until it was stopped."""
        return cast(StepInstance, self._client.call("POST", path_of("runs", run, "steps", step, index, "cancel")).json(status=str))

    def retry(self, run: str, step: str, index: int = 0, reason: str = "") -> StepInstance:
        """Retry an instance that has failed or was canceled."""
        path = path_of("runs", run, "steps", step, index, "retry")
        return cast(StepInstance, self._client.call("POST", path, {"reason": reason}).json(status=str))

    def ready(self, queue: str = "default", wait: Duration = 0, interrupt: Optional[Interrupt] = None) -> List[StepInstance]:
        """Return the instances of a queue that executors can take. If there is none, wait for one."""
        most = seconds(wait, "wait")
        path = path_of("queues", queue, "ready") + ("?wait=" + text(most) if most else "")
        answer = self._client.call("GET", path, timeout=most + ANSWER_TIMEOUT, interrupt=interrupt)
        return cast(List[StepInstance], answer.json(items=list)["items"])
