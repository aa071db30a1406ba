"""`Idempotency-Key`: a repeated request gets the answer of the first one, and takes effect once.

The answer is stored for a day, in the transaction of the action, so a crash leaves both or neither. An error has no
effect and is not stored, so a repetition may succeed.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse

from agentops.accounts.access import Principal
from agentops.accounts.idempotency_keys import RETENTION, delete_expired_keys
from agentops.accounts.models import IdempotencyKey, Project
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict, Fault, Invalid, Refusal
from runs.providers import loading

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
#: 1 to 255 ASCII characters, without spaces around them.
KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?", re.ASCII)
#: Headers that are stored; the others are the same for every answer.
STORED_HEADERS = ("Content-Type", "Location")
#: Expired keys that each new key deletes, so that they do not accumulate without retention.
EXPIRED_PER_KEY = 2
RETRY_AFTER_S = 1

#: Keys whose first request this process is handling now, on SQLite.
_active_scopes: set[bytes] = set()
_scopes_lock = threading.Lock()


def answer_once(
    request: HttpRequest,
    principal: Principal,
    project: Project,
    document: Mapping[str, Any],
    act: Callable[[], HttpResponse],
) -> HttpResponse:
    """Return the answer of `act`, or the stored answer to the first request with the key. `document` is the body."""
    key = _key(request)
    if key is None:
        return act()
    caller = f"{principal.kind.value}:{principal.key_id or principal.user_id}"
    identity: dict[str, Any] = {"project": project, "caller": caller, "key": _stored_key(key)}
    request_digest = _digest(request.method or "", request.path_info, _canonical(document))
    scope = _digest(str(project.pk), caller, key)

    def answer() -> HttpResponse:
        with _one_at_a_time(scope), transaction.atomic():
            _lock_in_database(scope)
            earlier = IdempotencyKey.objects.filter(**identity).first()
            if earlier is not None and earlier.created_at > database_clock.now() - RETENTION:
                return _replay(earlier, request_digest)
            response = act()
            _store(identity, request_digest, response)
        return response

    return loading.repeating(answer)


def _store(identity: Mapping[str, Any], request_digest: bytes, response: HttpResponse) -> None:
    answer = {
        "asked": request_digest,
        "status": response.status_code,
        "headers": {name: response.headers[name] for name in STORED_HEADERS if name in response.headers},
        "body": response.content.decode(),
        "created_at": database_clock.now(),
    }
    IdempotencyKey.objects.update_or_create(**identity, defaults=answer)
    delete_expired_keys(EXPIRED_PER_KEY)


def _key(request: HttpRequest) -> str | None:
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not KEY.fullmatch(key):
        text = "the key must have 1 to 255 printable ASCII characters"
        errors = [Fault(HEADER, "invalid_idempotency_key", text)]
        raise Refusal(text, code="invalid_idempotency_key", errors=errors)
    return key


def _stored_key(key: str) -> str:
    """Return the key as stored. A key with a secret becomes a digest, so that different keys stay different."""
    return key if not REDACTOR.spans(key) else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _replay(earlier: IdempotencyKey, request_digest: bytes) -> HttpResponse:
    if bytes(earlier.asked) != request_digest:
        text = "the key was used for another request: use a new key"
        errors = [Fault(HEADER, "idempotency_mismatch", text)]
        raise Invalid(text, code="idempotency_mismatch", errors=errors)
    headers = {**earlier.headers, REPLAYED: "true"}
    return HttpResponse(earlier.body, status=earlier.status, headers=headers)


def _one_at_a_time(scope: bytes) -> AbstractContextManager[None]:
    """Refuse a second request with the key, which on SQLite would wait for the first.

    PostgreSQL uses a lock instead. It ends with the session: if the server ends the session of the first request, a
    repeat does not wait until the process detects that.
    """
    return nullcontext() if connection.vendor == "postgresql" else _lock_in_process(scope)


@contextmanager
def _lock_in_process(scope: bytes) -> Iterator[None]:
    with _scopes_lock:
        if scope in _active_scopes:
            raise _in_progress()
        _active_scopes.add(scope)
    try:
        yield
    finally:
        with _scopes_lock:
            _active_scopes.discard(scope)


def _lock_in_database(scope: bytes) -> None:
    """Lock the key until the end of the transaction, on PostgreSQL."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [int.from_bytes(scope[:8], "big", signed=True)])
        (is_locked,) = cursor.fetchone()
    if not is_locked:
        raise _in_progress()


def _in_progress() -> Refusal:
    text = "the first request with this key is still in progress: retry later"
    return Conflict(text, code="in_progress", headers={"Retry-After": str(RETRY_AFTER_S)})


def _canonical(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()
