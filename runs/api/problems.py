"""Errors of requests: invalid query parameters, refusals about fields of a body, and DRF's errors as refusals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rest_framework import exceptions

from agentops.accounts.errors import AuthRequired
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Fault, Invalid, Refusal

JSON = "application/json"
#: Maximum characters of a value that an error text repeats.
MAX_ECHO = 64
#: Characters of a value that are searched for secrets before it is echoed.
MAX_SEARCHED = 4096


#: Code of a refusal → the invalid field of the body.
FIELDS = {
    "slug_taken": "slug",
    "invalid_slug": "slug",
    "invalid_name": "name",
    "invalid_description": "description",
    "invalid_retention": "retention_days",
    "invalid_max_running": "max_running",
    "already_member": "user",
    "member_not_found": "user",
    "user_is_address": "user",
    "invalid_email": "email",
    "already_invited": "email",
    "invalid_scopes": "scopes",
    "invalid_expiry": "expires_at",
    "agent_not_found": "agent_id",
    "flow_not_found": "flow_id",
}


class InvalidParameters(Refusal):
    """Query parameters are invalid. The code and the text are those of the first fault."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(faults[0].detail, code=faults[0].code, errors=faults)


def echo(text: str) -> str:
    """Return a value for an error text: masked, quoted and cut.

    It is masked before it is cut, because the first half of a secret would not be recognised.
    """
    return repr(REDACTOR.clean_text(text[:MAX_SEARCHED])[0][:MAX_ECHO])


@contextmanager
def field_pointers() -> Iterator[None]:
    """Add to a refusal the pointer of the invalid field. A 404, for an object that a field names, becomes a 422."""
    try:
        yield
    except Refusal as refusal:
        name = FIELDS.get(refusal.code)
        if name is None:
            raise
        status = 422 if refusal.status == 404 else refusal.status
        raise Refusal(str(refusal), code=refusal.code, status=status, pointer=f"/{name}") from refusal


def raise_problem(error: Exception, context: Mapping[str, Any]) -> None:
    """Raise an error of DRF as `Refusal`. This is DRF's exception handler; the middleware handles all other errors."""
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
    """Yield the faults in DRF's nested error details, with their JSON pointers."""
    if isinstance(details, Mapping) and set(details) == {"message", "code"} and isinstance(details["code"], str):
        yield Fault(pointer, details["code"], str(details["message"]))
    elif isinstance(details, Mapping):
        for name, inner in details.items():
            step = "" if name == "non_field_errors" else "/" + str(name).replace("~", "~0").replace("/", "~1")
            yield from _faults(inner, pointer + step)
    elif isinstance(details, list):
        # A list of messages is about one value; otherwise the list has the errors of each item of a list.
        is_about_items = any(isinstance(item, Mapping) and "message" not in item for item in details)
        for index, item in enumerate(details):
            yield from _faults(item, f"{pointer}/{index}" if is_about_items else pointer)
