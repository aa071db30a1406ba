"""Security headers of every response; error pages; static files; CSP reports."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import include, path

from agentops.base.http.error_pages import bad_request, forbidden, not_found, server_error
from agentops.base.http.log_lines import LogLine
from agentops.base.http.middleware import UNUSED_FEATURES
from agentops.site.csp_report import LOGGED
from tests.support.factories import forget_attempts

POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "font-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "object-src 'none'",
    "require-trusted-types-for 'script'",
    "report-uri /csp-report",
}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
REQUEST_ID = re.compile(r"[0-9a-f]{32}")

# --- Failing views, in addition to the site's --------------------------------------------------------------------

SECRET = "hunter2-in-an-exception"


def breaks(request: HttpRequest) -> HttpResponse:
    raise RuntimeError(SECRET)


def database_down(request: HttpRequest) -> HttpResponse:
    raise OperationalError(f"connection to server at {SECRET} failed")


def logs(request: HttpRequest) -> HttpResponse:
    logging.getLogger("test.logs").warning("forged\nline \x1b[2J %s", "\u2028end")
    return HttpResponse("done")


handler400, handler403, handler404, handler500 = bad_request, forbidden, not_found, server_error
urlpatterns = [
    path("breaks", breaks),
    path("api/breaks", breaks),
    path("database-down", database_down),
    path("api/database-down", database_down),
    path("logs", logs),
    path("", include("agentops.urls")),
]
with_broken_views = override_settings(ROOT_URLCONF=__name__)


def client(**options: Any) -> Client:
    return Client(raise_request_exception=False, **options)


# --- Headers -----------------------------------------------------------------------------------------------------

ASKED = [
    ("GET", "/login", 200),
    ("GET", "/", 302),
    ("GET", "/p/alpha/runs", 302),
    ("GET", "/no/such/page", 404),
    ("GET", "/runs/no-uuid", 404),
    ("GET", "/p/alpha/runs/stream", 401),
    ("POST", "/login", 422),
    ("GET", "/logout", 405),
    ("GET", "/breaks", 500),
    ("GET", "/database-down", 503),
    ("GET", "/api/no/such/path", 404),
    ("GET", "/api/breaks", 500),
    ("GET", "/admin/", 302),
    ("GET", "/static/css/timeline.css", 200),
    ("GET", "/static/admin/css/base.css", 200),
    ("POST", "/csp-report", 204),
    ("GET", "/csp-report", 405),
]


@with_broken_views
@pytest.mark.parametrize(("method", "url", "status"), ASKED)
def test_every_response_has_the_security_headers(method: str, url: str, status: int, db: None) -> None:
    accept = {"Accept": "text/event-stream"} if url.endswith("/stream") else {}

    answer = client().generic(method, url, headers=accept)

    assert answer.status_code == status
    assert set(answer["Content-Security-Policy"].split("; ")) == POLICY
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert {feature.partition("=")[0] for feature in answer["Permissions-Policy"].split(", ")} == set(UNUSED_FEATURES)
    assert REQUEST_ID.fullmatch(answer["X-Request-ID"])
    assert "Server" not in answer
    if url.startswith("/static/"):
        assert answer["Cache-Control"] == "max-age=60, public"
    else:
        assert "no-store" in answer["Cache-Control"]
        assert answer["X-Frame-Options"] == "DENY"
    assert "Access-Control-Allow-Origin" not in answer


def test_pages_after_login_have_the_security_headers(db: None) -> None:
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss"))

    for url in ("/", "/admin/", "/admin/auth/user/"):
        answer = boss.get(url)
        assert answer.status_code == 200
        assert set(answer["Content-Security-Policy"].split("; ")) == POLICY
        assert "no-store" in answer["Cache-Control"]


def test_cookies_are_not_readable_by_scripts(db: None) -> None:
    browser = Client()
    token = browser.get("/login").cookies["csrftoken"]
    User.objects.create_user("alice", password="correct horse battery staple")
    browser.post("/login", {"username": "alice", "password": "correct horse battery staple"})
    session = browser.cookies["sessionid"]

    for cookie in (token, session):
        assert cookie["httponly"]
        assert cookie["samesite"] == "Lax"


def test_cookies_are_bound_to_the_host_with_https(tmp_path: Path) -> None:
    code = (
        "from django.conf import settings as s; print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME,"
        " s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SECURE_HSTS_SECONDS, s.SECURE_HSTS_INCLUDE_SUBDOMAINS)"
    )
    env = os.environ | {"AGENTOPS_HTTPS": "true", "FORWARDED_ALLOW_IPS": "192.0.2.1", "AGENTOPS_HOME": str(tmp_path)}

    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["__Host-sessionid", "__Host-csrftoken", "True", "True", "31536000", "True"]


# --- Request IDs -------------------------------------------------------------------------------------------------


@with_broken_views
def test_each_request_has_a_new_id_from_the_server() -> None:
    first = client().get("/breaks", headers={"X-Request-ID": "from-the-client"})
    second = client().get("/breaks")

    assert first["X-Request-ID"] != second["X-Request-ID"]
    for answer in (first, second):
        assert answer["X-Request-ID"] in answer.content.decode()
    assert b"from-the-client" not in first.content


@with_broken_views
def test_a_log_record_is_one_line_with_the_request_id() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(LogLine("%(levelname)s %(message)s").format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("test.logs")
    logger.addHandler(handler)
    try:
        answer = client().get("/logs")
    finally:
        logger.removeHandler(handler)

    assert lines == [rf"WARNING forged\nline \x1b[2J \u2028end request_id={answer['X-Request-ID']}"]


@with_broken_views
def test_the_traceback_is_logged_with_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.setFormatter(LogLine("%(message)s"))

    answer = client().get("/breaks")

    assert f"Internal Server Error: /breaks request_id={answer['X-Request-ID']}\nTraceback" in caplog.text


# --- Error pages -------------------------------------------------------------------------------------------------


@with_broken_views
@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ("/breaks", 500, "internal_error"),
        ("/database-down", 503, "storage_unavailable"),
        ("/no/such/page", 404, "not_found"),
        ("/no/<script>alert(1)</script>", 404, "not_found"),
    ],
)
def test_error_pages_need_no_database(url: str, status: int, code: str) -> None:
    """Error pages do not even read the session; the test has no database access."""
    browser = client()
    browser.cookies["sessionid"] = "x" * 32

    answer = browser.get(url)

    assert answer.status_code == status
    page = answer.content.decode()
    assert code in page
    assert SECRET not in page
    assert "<script>alert" not in page
    assert "Traceback" not in page


@with_broken_views
@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ("/api/breaks", 500, "internal_error"),
        ("/api/database-down", 503, "storage_unavailable"),
        ("/api/no/such/path", 404, "not_found"),
    ],
)
def test_api_clients_get_a_problem_document(url: str, status: int, code: str) -> None:
    answer = client().get(url)

    assert answer["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert problem["request_id"] == answer["X-Request-ID"]
    assert SECRET not in answer.content.decode()


@with_broken_views
def test_a_response_without_a_database_has_retry_after() -> None:
    assert client().get("/database-down")["Retry-After"] == "5"


def test_an_unknown_host_is_refused() -> None:
    answer = client(headers={"Host": "rebound.example"}).get("/login")

    assert answer.status_code == 400
    assert b"rebound.example" not in answer.content


@with_broken_views
def test_a_failing_error_page_falls_back_to_plain_text(settings: Any) -> None:
    settings.TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": []}]

    answer = client().get("/breaks")

    assert (answer.status_code, answer["Content-Type"]) == (500, "text/plain; charset=utf-8")
    assert answer["X-Request-ID"] in answer.content.decode()


# --- Static files ------------------------------------------------------------------------------------------------


def test_a_static_file_is_sent_once_and_then_not_modified() -> None:
    first = client().get("/static/css/timeline.css")
    assert not first.streaming
    assert first.content == (Path(__file__).parent.parent / "static/css/timeline.css").read_bytes()
    assert first["Content-Type"] == 'text/css; charset="utf-8"'

    again = client().get("/static/css/timeline.css", headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    assert "Content-Type" not in again

    head = client().head("/static/css/timeline.css")
    assert (head.status_code, head.content, head["Content-Length"]) == (200, b"", str(len(first.content)))

    part = client().get("/static/css/timeline.css", headers={"Range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, first.content[:10])


@pytest.mark.parametrize(
    "url", ["/static/", "/static/js", "/static/../agentops/settings.py", "/static/%2e%2e/manage.py", "/static/nope.js"]
)
def test_other_files_are_not_served(url: str) -> None:
    assert client().get(url).status_code == 404


def test_a_static_file_cannot_be_posted_to() -> None:
    assert client().post("/static/css/timeline.css").status_code == 405


# --- CSP reports -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_reports_yet() -> None:
    forget_attempts()


def report(body: bytes, kind: str = "application/csp-report", address: str = "127.0.0.1") -> HttpResponse:
    return Client(enforce_csrf_checks=True, REMOTE_ADDR=address).post("/csp-report", body, content_type=kind)


def test_a_csp_report_is_one_line_in_the_log(no_reports_yet: None, caplog: pytest.LogCaptureFixture) -> None:
    answer = report(b'{"csp-report": {"blocked-uri": "inline\r\nFORGED \x1b[2J \xff \xe2\x80\xa8"}}')

    assert (answer.status_code, answer.content) == (204, b"")
    [line] = [record.getMessage() for record in caplog.records if record.name == "agentops.site.csp_report"]
    assert line.isascii()
    assert line.isprintable()
    assert r"inline\r\nFORGED \x1b[2J" in line


def test_a_csp_report_logs_no_secrets(no_reports_yet: None, caplog: pytest.LogCaptureFixture) -> None:
    report(b'{"document-uri": "https://user:hunter2-hunter2@agentops.example/"}')

    assert "hunter2-hunter2" not in caplog.text


@pytest.mark.parametrize(("size", "status"), [(0, 204), (8192, 204), (8193, 413), (1_000_000, 413)])
def test_the_size_of_a_csp_report_is_limited(size: int, status: int, no_reports_yet: None) -> None:
    assert report(b"x" * size).status_code == status


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_csp_reports_accept_only_post(method: str) -> None:
    assert Client().generic(method, "/csp-report").status_code == 405


def test_csp_reports_do_not_flood_the_log(no_reports_yet: None, caplog: pytest.LogCaptureFixture) -> None:
    """The limit applies to one address and to one IPv6 network, in which a client has 2^64 addresses."""
    for number in range(LOGGED.limit + 5):
        assert report(b"{}", address=f"2001:db8::{number:x}").status_code == 204

    assert sum(record.name == "agentops.site.csp_report" for record in caplog.records) == LOGGED.limit
