"""The errors of the API: exceptions that agentops.base.http.middleware.Refusals answers with RFC 9457 problem details.

Any exception with a `code` and a `status`, from any module, is answered the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rest_framework import exceptions

from agentops.accounts.errors import AuthRequired
from agentops.base.redaction.redact import DEFAULT as REDACTOR

JSON = "application/json"
MAX_ECHO = 64
#: Characters of a value that are searched for secrets before it is echoed.
MAX_SEARCHED = 4096
#: Entries of `errors`; more would not help to correct the request.
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

    def as_json(self) -> dict[str, str]:
        return {"pointer": self.pointer, "code": self.code, "detail": self.detail}


class Problem(Exception):
    """An error. Raised directly if it occurs in one place only, or as a subclass if callers catch it."""

    code: str = "bad_request"
    status: int = 400
    text: ClassVar[str] = "invalid request"

    def __init__(
        self,
        detail: str = "",
        *,
        code: str | None = None,
        status: int | None = None,
        errors: Iterable[Fault] = (),
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail or self.text)
        self.code = code or self.code
        self.status = status or self.status
        self.errors = [fault.as_json() for fault in list(errors)[:MAX_FAULTS]]
        self.headers = dict(headers or {})
        #: Further members of the answer, such as the status of the run.
        self.data = extra


class CsrfFailed(Problem):
    code = "csrf_failed"
    status = 403
    text = "a request with a session cookie requires the header X-CSRFToken; a request with an API key does not"


class ResourceNotFound(Problem):
    """An object does not exist, or belongs to another project: the answer is the same."""

    code = "not_found"
    status = 404
    text = "not found"


class RunMismatch(Problem):
    """The body names a different run from the URL's."""

    code = "run_mismatch"
    status = 409


class InvalidParameters(Problem):
    """The query is invalid. The code is the code of its first fault."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(faults[0].detail, code=faults[0].code, errors=faults)


def echo(text: str) -> str:
    """Return a value for use in an error text. Masked before it is cut, because half a secret is not recognised."""
    return repr(REDACTOR.clean_text(text[:MAX_SEARCHED])[0][:MAX_ECHO])


def raise_problem(error: Exception, context: Mapping[str, Any]) -> None:
    """Raise DRF's errors as `Problem`; the middleware handles all others. DRF's exception handler."""
    if isinstance(error, exceptions.NotAuthenticated):
        raise AuthRequired from error
    if isinstance(error, exceptions.ValidationError):
        faults = list(_faults(error.get_full_details()))
        code = faults[0].code if len({fault.code for fault in faults}) == 1 else "invalid_input"
        raise Problem(faults[0].detail, code=code, status=422, errors=faults) from error
    if isinstance(error, exceptions.UnsupportedMediaType):
        text = f"the body must be {JSON}, not {echo(context['request'].content_type)}"
        headers = {"Accept-Post": JSON}
        raise Problem(text, code="unsupported_media_type", status=415, headers=headers) from error
    if isinstance(error, exceptions.APIException):
        raise Problem(str(error.detail), code=str(error.get_codes()), status=error.status_code) from error


def _faults(details: Any, pointer: str = "") -> Iterable[Fault]:
    if isinstance(details, Mapping) and set(details) == {"message", "code"} and isinstance(details["code"], str):
        yield Fault(pointer, details["code"], str(details["message"]))
    elif isinstance(details, Mapping):
        for name, inner in details.items():
            step = "" if name == "non_field_errors" else "/" + str(name).replace("~", "~0").replace("/", "~1")
            yield from _faults(inner, pointer + step)
    elif isinstance(details, list):
        # A list of messages belongs to one field; a list of objects has an entry for each item.
        nested = any(isinstance(item, Mapping) and "message" not in item for item in details)
        for index, item in enumerate(details):
            yield from _faults(item, f"{pointer}/{index}" if nested else pointer)
