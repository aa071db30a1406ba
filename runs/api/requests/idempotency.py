"""`Idempotency-Key`: a repeated request has no further effect, and gets the answer to the first one.

The answer is stored for a day, in the transaction of the action, so that a crash leaves both or neither. A refused
request has no effect and its answer is not stored, so that a repetition may succeed.
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
from agentops.accounts.models import IdempotencyKey, Project
from agentops.accounts.models.key_models import RETENTION, delete_expired_keys
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict, Invalid, Refusal
from runs.providers import loading

HEADER = "Idempotency-Key"
#: The header that marks a stored answer.
REPLAYED = "Idempotent-Replayed"
#: 1 to 255 ASCII characters, without spaces around them.
KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?", re.ASCII)
#: Headers that are stored. All others are the same for every answer.
STORED_HEADERS = ("Content-Type", "Location")
#: How many expired keys are deleted when a key is stored, so that they do not accumulate.
EXPIRED_PER_KEY = 2
RETRY_AFTER_S = 1

#: On SQLite: the keys whose first request this process is handling now, each as its digest (`scope`).
_active_scopes: set[bytes] = set()
_scopes_lock = threading.Lock()


def answer_once(
    request: HttpRequest,
    principal: Principal,
    project: Project,
    document: Mapping[str, Any],
    act: Callable[[], HttpResponse],
) -> HttpResponse:
    """Return the answer of `act`, or the stored answer to the first request with the key.

    `document`: the body. Raises `Refusal` if the key is invalid, was used with another request, or is in use now.
    """
    key = _key(request)
    if key is None:
        return act()
    caller = f"{principal.kind.value}:{principal.key_id or principal.user_id}"
    identity: dict[str, Any] = {"project": project, "caller": caller, "key": _stored_key(key)}
    canonical_body = json.dumps(document, sort_keys=True, separators=(",", ":"))
    request_digest = _digest(request.method or "", request.path_info, canonical_body)
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

    # A provider's library is imported outside of the transaction, which is then repeated.
    return loading.repeating(answer)


def _store(identity: Mapping[str, Any], request_digest: bytes, response: HttpResponse) -> None:
    """Store the answer, and delete some expired keys."""
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
    """Return the key of a request, or None. Raises `Refusal`."""
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not KEY.fullmatch(key):
        text = "the key must have 1 to 255 printable ASCII characters"
        raise Refusal(text, code="invalid_idempotency_key", pointer=HEADER)
    return key


def _stored_key(key: str) -> str:
    """Return the key as it is stored: its digest if it contains a secret. Masked keys could be equal."""
    return key if not REDACTOR.spans(key) else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _replay(earlier: IdempotencyKey, request_digest: bytes) -> HttpResponse:
    """Return the stored answer. Raises `Invalid` if it belongs to another request."""
    if bytes(earlier.asked) != request_digest:
        text = "the key was used for another request: use a new key"
        raise Invalid(text, code="idempotency_mismatch", pointer=HEADER)
    headers = {**earlier.headers, REPLAYED: "true"}
    return HttpResponse(earlier.body, status=earlier.status, headers=headers)


def _one_at_a_time(scope: bytes) -> AbstractContextManager[None]:
    """On SQLite, refuse a second request with the key while the first is in progress: it would wait for the first.

    On PostgreSQL, `_lock_in_database` does this by a lock that ends with the database session. If the server ends that
    session, a repeated request need not wait until the process of the first one notices it.
    """
    return nullcontext() if connection.vendor == "postgresql" else _lock_in_process(scope)


@contextmanager
def _lock_in_process(scope: bytes) -> Iterator[None]:
    """Hold the key in this process. Raises `Conflict` if another thread holds it."""
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
    """On PostgreSQL, lock the key until the end of the transaction. Raises `Conflict` if it is locked."""
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


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()
