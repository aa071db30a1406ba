"""`Idempotency-Key`: who repeats a request gets the answer again that the first one got, and nothing happens twice.

The answer is kept for a day, by the transaction of what was done: a crash leaves both or neither. A refusal has done
nothing and is not kept, so a repeat may still succeed.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from agentops.projects.access import Principal
from agentops.projects.idempotency_keys import RETENTION, forget_old_keys
from agentops.projects.models import IdempotencyKey, Project
from runs.api.problems import Fault, Problem
from timeline.redaction.redact import DEFAULT as REDACTOR

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
#: 1 to 255 characters of ASCII, without spaces around them.
KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?", re.ASCII)
#: Of what was answered; the rest is the same for every answer.
KEPT_HEADERS = ("Content-Type", "Location")
#: How many old keys a new one takes away: there are never many more than a day's, also where no retention runs.
FORGET_WITH_EACH = 2
RETRY_AFTER_S = 1

#: Keys whose first request this process is answering now.
being_answered: set[bytes] = set()
_answering_lock = threading.Lock()


def once(
    request: HttpRequest,
    principal: Principal,
    project: Project,
    document: Mapping[str, Any],
    act: Callable[[], HttpResponse],
) -> HttpResponse:
    """The answer of `act`; where the request has a key, of the first request that had it. `document`: its body."""
    key = _key(request)
    if key is None:
        return act()
    caller = f"{principal.kind.value}:{principal.key_id or principal.user_id}"
    mine: dict[str, Any] = {"project": project, "caller": caller, "key": _kept(key)}
    asked = _digest(request.method or "", request.path_info, _canonical(document))
    scope = _digest(str(project.pk), caller, key)
    with _alone_here(scope), transaction.atomic():
        _alone_everywhere(scope)
        earlier = IdempotencyKey.objects.filter(**mine).first()
        if earlier is not None and earlier.created_at > timezone.now() - RETENTION:
            return _again(earlier, asked)
        response = act()
        kept = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
        answered = {"asked": asked, "status": response.status_code, "headers": kept, "body": response.content.decode()}
        IdempotencyKey.objects.update_or_create(**mine, defaults=answered | {"created_at": timezone.now()})
        forget_old_keys(FORGET_WITH_EACH)
    return response


def _key(request: HttpRequest) -> str | None:
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not KEY.fullmatch(key):
        text = "the key must have 1 to 255 printable ASCII characters"
        errors = [Fault(HEADER, "invalid_idempotency_key", text)]
        raise Problem(text, code="invalid_idempotency_key", errors=errors)
    return key


def _kept(key: str) -> str:
    """The key as it is stored: one that has a secret in it as a digest, so that two of them stay two."""
    return key if not REDACTOR.spans(key) else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _again(earlier: IdempotencyKey, asked: bytes) -> HttpResponse:
    if bytes(earlier.asked) != asked:
        text = "the key was used for another request: a new request needs a new key"
        errors = [Fault(HEADER, "idempotency_mismatch", text)]
        raise Problem(text, code="idempotency_mismatch", status=422, errors=errors)
    headers = {**earlier.headers, REPLAYED: "true"}
    return HttpResponse(earlier.body, status=earlier.status, headers=headers)


@contextmanager
def _alone_here(scope: bytes) -> Iterator[None]:
    """Refuses a second request of this process at the same time: on SQLite it would wait for the first one's end."""
    with _answering_lock:
        if scope in being_answered:
            raise _in_progress()
        being_answered.add(scope)
    try:
        yield
    finally:
        with _answering_lock:
            being_answered.discard(scope)


def _alone_everywhere(scope: bytes) -> None:
    """The same between processes, until the transaction ends. SQLite lets in one writer at a time by itself."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [int.from_bytes(scope[:8], "big", signed=True)])
        (held,) = cursor.fetchone()
    if not held:
        raise _in_progress()


def _in_progress() -> Problem:
    text = "the first request with this key is not answered yet: repeat this one in a moment"
    return Problem(text, code="in_progress", status=409, headers={"Retry-After": str(RETRY_AFTER_S)})


def _canonical(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()
