"""Refusals: exceptions for requests that are not carried out, whatever their entry point.

Each entry point turns a `Refusal` into its own kind of answer in one place: the API and pages in
agentops.base.http.middleware, commands in agentops.accounts.command_base, the administration in its actions. The MCP
server and AG-UI pass on the answers of the API. A refusal has a separate class if code catches the class, or if its
code is used in several places. All others are instances of the general classes, with a `code`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

#: Maximum entries of `errors`; more would not help to correct the request.
MAX_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of `errors`.

    `pointer` is an RFC 6901 pointer into the body (`/labels/0`), the name of a query parameter (`?limit`), or the
    name of a header (`Idempotency-Key`).
    """

    pointer: str
    code: str
    detail: str


class Refusal(Exception):
    """A request is refused. The text is for users; `code` is stable, and `status` is an HTTP status.

    `data` are further members of the answer, such as the status of the run. `data["pointer"]` is the JSON pointer to
    the invalid value, if there is only one.
    """

    code: str = "bad_request"
    status: int = 400
    #: The default text.
    text: str = "invalid request"
    #: Headers of an answer over HTTP.
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        text: str = "",
        *,
        code: str | None = None,
        status: int | None = None,
        errors: Iterable[Fault] = (),
        headers: Mapping[str, str] | None = None,
        **data: Any,
    ) -> None:
        super().__init__(text or self.text)
        self.code = code or self.code
        self.status = status or self.status
        self.headers = {**self.headers, **(headers or {})}
        self.data = data
        self._faults = list(errors)

    def facts(self) -> dict[str, Any]:
        """Return the further members of an answer: `data`, and the invalid parts of the request as `errors`."""
        facts, faults = dict(self.data), self._faults
        if (pointer := facts.pop("pointer", None)) is not None:
            faults = [Fault(pointer, self.code, str(self))]
        return facts | {"errors": [asdict(fault) for fault in faults[:MAX_FAULTS]]}


class NotFound(Refusal):
    """The object does not exist, or is not visible: callers must not be able to distinguish the two."""

    code = "not_found"
    status = 404
    text = "not found"


class Forbidden(Refusal):
    """The object is visible, but the action is not allowed."""

    code = "forbidden"
    status = 403
    text = "this action is not allowed"


class Conflict(Refusal):
    """The current state does not allow the action."""

    code = "conflict"
    status = 409
    text = "the current state does not allow this"


class Invalid(Refusal):
    """A value is invalid."""

    code = "invalid_input"
    status = 422


class InvalidQuery(Refusal):
    """A query parameter, or a form field that no user enters, is invalid."""

    code = "invalid_query"
