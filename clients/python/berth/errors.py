"""Errors of berth. Branch on the class where there is one, and else on ``code``."""

from typing import Any, Mapping, Optional

LOST_CODES = frozenset({"claim_lost", "claim_revoked", "step_lost", "run_lost"})
NO_CAPACITY = frozenset({"no_capacity", "claim_timeout"})
# Statuses of a request that may succeed if it is sent again, unless etcd refuses the sidecar.
AGAIN = frozenset({408, 429, 502, 503, 504})


class BerthError(Exception):
    """An error of berth.

    ``code`` is one of the error codes of the reference, ``status`` the HTTP status (0 if the
    client found the error), ``detail`` what happened and what to do, ``fields`` the other members
    of the answer, such as ``errors``, ``reason``, ``position`` and ``holders``, and
    ``retry_after`` the seconds after which a retry may help, if they are known.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        status: int = 0,
        fields: Optional[Mapping[str, Any]] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.fields: Mapping[str, Any] = dict(fields or {})
        self.retry_after = retry_after

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code!r}, detail={self.detail!r})"


class ClaimLost(BerthError):
    """The claim, or the step instance, is no longer valid: stop the work."""


class NoCapacity(BerthError):
    """No slots were free, at once or within the wait."""


class Unavailable(BerthError):
    """The sidecar can't be reached, or it or etcd behind it could not serve the request now."""

    permanent = False
    """Whether it stays so until an address, a certificate or the rights on a socket are changed. Otherwise, send the request again later."""
    # Whether the sidecar may have received the request, and its answer was lost; and whether a wait ended with this.
    sent, waited = False, False


def stranger(sidecar: str, status: int, body: bytes) -> Unavailable:
    """Return the error of an answer that is not one of a sidecar, such as that of a proxy or of another server."""
    what = body[:200].decode("utf-8", "replace")
    err = Unavailable("unavailable", f"what answers at {sidecar} is no sidecar: status {status}, {what!r}", status)
    err.permanent = status < 500 and status not in AGAIN
    err.sent = status < 300
    return err


def timed_out(err: Unavailable, wait: float) -> Unavailable:
    """Return the error of a wait of so many seconds, at whose end the sidecar or etcd was still unavailable."""
    after = Unavailable(err.code, f"timed out after {wait:g} s: {err.detail}", err.status, err.fields, err.retry_after)
    after.sent, after.waited = err.sent, True
    return after


def invalid(field: str, message: str) -> BerthError:
    """Return the error of a setting or an argument."""
    return BerthError("invalid", f"{field}: {message}", fields={"errors": [{"field": field, "message": message}]})


def error_of(problem: Mapping[str, Any], status: int, retry_after: Optional[float]) -> BerthError:
    """Return the error that an answer states."""
    if not isinstance(problem["code"], str):
        raise TypeError("a code is a text")
    code, detail = problem["code"], str(problem.get("detail") or problem.get("title") or problem["code"])
    kind = BerthError
    if code in LOST_CODES:
        kind = ClaimLost
    elif code in NO_CAPACITY:
        kind = NoCapacity
    elif status in AGAIN and code != "etcd_denied":
        kind = Unavailable
    rest = {k: v for k, v in problem.items() if k not in ("code", "detail", "status", "title")}
    return kind(code, detail, status, rest, retry_after)
