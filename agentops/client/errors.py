"""The exceptions of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class AgentopsError(Exception):
    """The base class of all exceptions of the client."""


class ConnectionFailed(AgentopsError):
    """The site cannot be reached, or did not answer in time."""


class StreamReset(AgentopsError):
    """A run can no longer be followed from its position: retention deleted the run, or the database was restored."""

    def __init__(self, last_seq: int) -> None:
        super().__init__(f"the position is no longer valid; the log now ends at event {last_seq}: follow it from 0")
        self.last_seq = last_seq


class ApiError(AgentopsError):
    """A refusal of the site (RFC 9457). Its subclasses correspond to HTTP statuses."""

    statuses: ClassVar[tuple[int, ...]] = ()

    def __init__(self, status: int, problem: Mapping[str, Any], *, retry_after_s: float | None = None) -> None:
        #: The HTTP status.
        self.status = status
        #: For programs, such as `run_not_paused`. Empty if the response is not from the site.
        self.code = str(problem.get("code", ""))
        #: For people.
        self.detail = str(problem.get("detail") or problem.get("title") or "")
        #: Identifies the request in the server's log.
        self.request_id = str(problem.get("request_id", ""))
        #: The invalid parts of the request, each with `pointer`, `code` and `detail`.
        self.errors: list[dict[str, str]] = list(problem.get("errors") or [])
        #: The whole response; some refusals have further members, such as `run_status`.
        self.problem = dict(problem)
        #: Seconds to wait before the next request, if the site specifies it.
        self.retry_after_s = retry_after_s
        super().__init__(f"{status} {self.code or 'error'}: {self.detail or 'no detail'}")


class Unauthorized(ApiError):
    """The key is missing, unknown, expired or revoked."""

    statuses = (401,)


class AccessDenied(ApiError):
    """The key lacks the scope for the request."""

    statuses = (403,)


class UnknownObject(ApiError):
    """The run or other object does not exist in the project of the key."""

    statuses = (404,)


class StateConflict(ApiError):
    """The status of the run does not allow this."""

    statuses = (409,)


class Deleted(ApiError):
    """Retention has deleted the run."""

    statuses = (410,)


class InvalidRequest(ApiError):
    """The request is invalid; see `errors`."""

    statuses = (400, 413, 415, 422)


class TooManyRequests(ApiError):
    """A rate limit is exceeded; `retry_after_s` is the time to wait."""

    statuses = (429,)


class ServerUnavailable(ApiError):
    """The site is temporarily unavailable, for example because its database does not respond."""

    statuses = (500, 502, 503, 504)


_BY_STATUS = {status: kind for kind in ApiError.__subclasses__() for status in kind.statuses}


def refusal(status: int, problem: Mapping[str, Any], retry_after: str | None) -> ApiError:
    """Return the exception for a response. `retry_after`: the value of its header."""
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    # Proxies use additional statuses, such as 520.
    kind = _BY_STATUS.get(status) or (ServerUnavailable if status >= 500 else ApiError)
    return kind(status, problem, retry_after_s=seconds)
