"""The exceptions of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class AgentopsError(Exception):
    """The base class of all exceptions of the client."""


class ConnectionFailed(AgentopsError):
    """The site cannot be reached, or did not answer in time."""


class StreamReset(AgentopsError):
    """A followed run cannot be continued from where it was: retention deleted it, or the database was restored."""

    def __init__(self, last_seq: int) -> None:
        super().__init__(f"the position is no longer valid; the log now ends at event {last_seq}: follow it from 0")
        self.last_seq = last_seq


class ApiError(AgentopsError):
    """A refusal of the site (RFC 9457). Its subclasses stand for HTTP statuses."""

    statuses: ClassVar[tuple[int, ...]] = ()

    def __init__(self, status: int, problem: Mapping[str, Any], *, retry_after_s: float | None = None) -> None:
        #: The HTTP status.
        self.status = status
        #: For programs, such as `run_not_paused`. Empty if something other than the site has answered.
        self.code = str(problem.get("code", ""))
        #: For people.
        self.detail = str(problem.get("detail") or problem.get("title") or "")
        #: Finds the request in the log of the server.
        self.request_id = str(problem.get("request_id", ""))
        #: The invalid parts of the request: `pointer`, `code` and `detail` of each.
        self.errors: list[dict[str, str]] = list(problem.get("errors") or [])
        #: The whole answer; some refusals have further members, such as `run_status`.
        self.problem = dict(problem)
        #: Seconds after which the site wants to be asked again, if it says so.
        self.retry_after_s = retry_after_s
        super().__init__(f"{status} {self.code or 'error'}: {self.detail or 'no detail'}")


class Unauthorized(ApiError):
    """The key is missing, unknown, expired or revoked."""

    statuses = (401,)


class AccessDenied(ApiError):
    """The key lacks the scope for the request."""

    statuses = (403,)


class UnknownObject(ApiError):
    """There is no such run or other object in the project of the key."""

    statuses = (404,)


class StateConflict(ApiError):
    """The run is not in a status in which this is possible."""

    statuses = (409,)


class Deleted(ApiError):
    """Retention has deleted the run."""

    statuses = (410,)


class InvalidRequest(ApiError):
    """The request is invalid; `errors` says where."""

    statuses = (400, 413, 415, 422)


class TooManyRequests(ApiError):
    """A rate limit is exceeded; `retry_after_s` says when to ask again."""

    statuses = (429,)


class ServerUnavailable(ApiError):
    """The site cannot do anything now, for example because its database does not answer."""

    statuses = (500, 502, 503, 504)


_BY_STATUS = {status: kind for kind in ApiError.__subclasses__() for status in kind.statuses}


def refusal(status: int, problem: Mapping[str, Any], retry_after: str | None) -> ApiError:
    """Return the exception for an answer. `retry_after`: the value of its header."""
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    # Proxies have statuses of their own, such as 520.
    kind = _BY_STATUS.get(status) or (ServerUnavailable if status >= 500 else ApiError)
    return kind(status, problem, retry_after_s=seconds)
