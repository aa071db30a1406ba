"""`/healthz`: whether this process runs; `/readyz`: whether it can serve requests; and who may read such data.

Only loopback and clients with AGENTOPS_HEALTH_TOKEN get details. Others get one word.
"""

from __future__ import annotations

import hmac
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimedOut
from dataclasses import dataclass
from ipaddress import ip_network

import redis
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from agentops.base import database_clock
from agentops.base.database.applied_migrations import UnusableSchema, missing_migrations
from agentops.base.http.request_origins import parse_address

LOOPBACK = {"127.0.0.1", "::1"}


def may_read(request: HttpRequest, token: str, networks: Sequence[str] = ()) -> bool:
    """Return whether the client has the token, or connects directly from loopback or one of the networks."""
    header = request.headers.get("Authorization", "")
    if token and hmac.compare_digest(header.encode(), f"Bearer {token}".encode()):
        return True
    # The address is that of a proxy.
    if "X-Forwarded-For" in request.headers or "Forwarded" in request.headers:
        return False
    client = request.META.get("REMOTE_ADDR") or ""
    address = parse_address(client)
    return client in LOOPBACK or (
        address is not None and any(each == "*" or address in ip_network(each, strict=False) for each in networks)
    )


log = logging.getLogger(__name__)
PATHS = ("/healthz", "/readyz")
METHODS = ("GET", "HEAD")
PLAIN = "text/plain; charset=utf-8"
#: Seconds after which a check counts as failed.
WITHIN_S = 2.0
#: The fraction of a disk that must be free.
MIN_FREE = 0.05
#: Seconds for which a result is reused.
FRESH_S = 1.0
#: Name of a check → its result.
CheckResults = dict[str, dict[str, object]]


class NotReady(Exception):
    """The reason why this process is not ready."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of readiness: `check` raises if it fails. Unless it is required, a failure only slows work down."""

    name: str
    check: Callable[[], None]
    is_required: bool = True


class Health:
    """The middleware that answers `/healthz` and `/readyz`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info not in PATHS:
            return self.get_response(request)
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS, b"method not allowed\n", content_type=PLAIN)
        return _word("ok") if request.path_info == "/healthz" else readyz(request)


def readyz(request: HttpRequest) -> HttpResponse:
    """Return 200 or 503; with details for clients that may read them."""
    results = readiness.check()
    ready = all(results[check.name]["ok"] for check in CHECKS if check.is_required)
    status = 200 if ready else 503
    if not may_read(request, settings.AGENTOPS_HEALTH_TOKEN):
        return _word("ready" if ready else "unavailable", status)
    return JsonResponse({"ready": ready, "checks": results}, status=status)


def libraries() -> None:
    """Load the model libraries of the site's agents, unless they are loaded."""
    # Loaded by name, because the module is above this package.
    import_string("runs.management.site.warm_up.load_vendors")()


def database() -> None:
    """Check that a row can be written and read. The write is rolled back."""
    with transaction.atomic():
        row = Session.objects.create(session_key="readyz", session_data="", expire_date=database_clock.now())
        row.refresh_from_db()
        transaction.set_rollback(True)


def broker() -> None:
    if settings.REDIS_URL:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1) as server:
            server.ping()


def disk() -> None:
    """Check that the disk of a SQLite database has free space."""
    if connection.vendor != "sqlite":
        return
    space = shutil.disk_usage(settings.AGENTOPS_HOME)
    if space.free < space.total * MIN_FREE:
        raise NotReady(f"{space.free // 2**20} MiB of disk are left")


class Readiness:
    """The readiness of this process."""

    def __init__(self) -> None:
        # One thread only: while a check hangs, the next ones wait for it and time out. More threads would accumulate.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="readyz")
        self._lock = threading.Lock()
        self._last_results: tuple[float, CheckResults] = (float("-inf"), {})
        self._is_migrated = False

    def check(self) -> CheckResults:
        """Return the results of all checks, which are at most a second old.

        Anyone may request them, so many requests must not keep the database busy.
        """
        with self._lock:
            if time.monotonic() - self._last_results[0] >= FRESH_S:
                results = {check.name: self._run_check(check) for check in CHECKS}
                self._last_results = (time.monotonic(), results)
            return self._last_results[1]

    def migrations(self) -> None:
        """Check that the schema is up to date. After success this is not repeated: an update starts a new process."""
        if self._is_migrated:
            return
        try:
            missing = missing_migrations(connection)
        except UnusableSchema as error:
            raise NotReady(str(error)) from None
        if missing:
            raise NotReady(f"{len(missing)} migrations are missing, first {missing[0]}: run `agentops migrate`")
        self._is_migrated = True

    def _run_check(self, check: Check) -> dict[str, object]:
        """Run a check in the thread, for at most WITHIN_S seconds, and return its result."""
        begun = time.monotonic()
        future: Future[None] = self._threads.submit(_run_and_close, check.check)
        problem = ""
        try:
            future.result(WITHIN_S)
        except TimedOut:
            future.cancel()
            problem = f"no answer within {WITHIN_S:g} s"
        except NotReady as error:
            problem = str(error)
        except Exception as error:
            # Without the text, which may contain an address or a name.
            problem = type(error).__name__
            log.warning("not ready: %s: %s", check.name, error)
        took = round((time.monotonic() - begun) * 1000)
        return {"ok": not problem, "ms": took, **({"problem": problem} if problem else {})}


readiness = Readiness()
CHECKS = [
    Check("libraries", libraries),
    Check("database", database),
    Check("migrations", lambda: readiness.migrations()),  # noqa: PLW0108 - tests replace `readiness`
    Check("disk", disk),
    Check("broker", broker, is_required=False),
]


def _run_and_close(check: Callable[[], None]) -> None:
    try:
        check()
    finally:
        connection.close()


def _word(word: str, status: int = 200) -> HttpResponse:
    return HttpResponse(f"{word}\n", status=status, content_type=PLAIN)
