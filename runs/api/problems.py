"""What the API refuses before an action is called: invalid queries and bodies, and DRF's own errors as refusals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rest_framework import exceptions

from agentops.accounts.errors import AuthRequired
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Fault, Invalid, Refusal

JSON = "application/json"
MAX_ECHO = 64
#: Characters of a value that are searched for secrets before it is echoed.
MAX_SEARCHED = 4096


class InvalidParameters(Refusal):
    """The query is invalid. The code is the code of its first fault."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(faults[0].detail, code=faults[0].code, errors=faults)


def echo(text: str) -> str:
    """Return a value for use in an error text. Masked before it is cut, because half a secret is not recognised."""
    return repr(REDACTOR.clean_text(text[:MAX_SEARCHED])[0][:MAX_ECHO])


def raise_problem(error: Exception, context: Mapping[str, Any]) -> None:
    """Raise DRF's errors as `Refusal`; the middleware handles all others. DRF's exception handler."""
    if isinstance(error, exceptions.NotAuthenticated):
        raise AuthRequired from error
    if isinstance(error, exceptions.ValidationError):
        faults = list(_faults(error.get_full_details()))
        code = faults[0].code if len({fault.code for fault in faults}) == 1 else "invalid_input"
        raise Invalid(faults[0].detail, code=code, errors=faults) from error
    if isinstance(error, exceptions.UnsupportedMediaType):
        text = f"the body must be {JSON}, not {echo(context['request'].content_type)}"
        headers = {"Accept-Post": JSON}
        raise Refusal(text, code="unsupported_media_type", status=415, headers=headers) from error
    if isinstance(error, exceptions.APIException):
        raise Refusal(str(error.detail), code=str(error.get_codes()), status=error.status_code) from error


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
