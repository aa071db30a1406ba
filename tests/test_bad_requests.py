"""Malformed requests: bytes that are not UTF-8, unsupported methods, unknown hosts."""

from __future__ import annotations

import logging
import socket
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver

from agentops.base.http.log_lines import LogLine
from agentops.base.http.middleware import methods_of
from tests.support.addresses import NOWHERE, PAGES, addresses, filled
from tests.support.factories import make_agent, make_person, make_project, with_key
from tests.support.second_pass import cases
from tests.support.web_server import WebThread

#: A lone surrogate, an invalid byte, an overlong slash, a truncated character.
NOT_UTF8 = ["%ED%A0%80", "%FF", "%C0%AF", "abc%E2%82"]
RUNS = "/api/projects/alpha/agent-runs"
UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"
RUN, PAGE = f"{RUNS}/{UNKNOWN}", f"/runs/{UNKNOWN}"
HOSTS = [
    *("rebound.example", "localhost.evil.example", "a b", "[::1", "x" * 5000, "é\x1b[2J\r\nforged"),
    *("localhost:65536", "localhost:0", "localhost:" + "9" * 5000, "[::1]:99999"),
]
#: URLs of every kind of endpoint: pages, API, OTLP, MCP, streams, files, probes.
DOORS = [
    *("/login", "/api/projects", "/v1/traces", "/mcp", f"{PAGE}/stream", f"{RUN}/events/stream"),
    *("/static/css/timeline.css", "/healthz", "/metrics"),
]


@pytest.fixture
def client(db: None) -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("boss"))
    make_project("alpha")
    return client


# --- Text that is not UTF-8 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", NOT_UTF8)
@pytest.mark.parametrize(
    ("url", "pointer"),
    [
        *((f"{RUNS}?{name}={{}}", f"?{name}") for name in ("q", "agent_id", "label", "cursor", "status")),
        (f"{RUNS}?limit=5&{{}}=x", "?"),
        (f"{RUN}/tool-calls?tool_name={{}}", "?tool_name"),
        (f"{RUN}/events/stream?afterSeq={{}}", "?afterSeq"),
        ("/api/projects/{}/agent-runs", "path"),
        ("/api/projects/alpha/agents/{}", "path"),
        ("/api/{}", "path"),
    ],
)
def test_the_api_reports_invalid_text_with_its_location(text: str, url: str, pointer: str, client: Client) -> None:
    """One error code for every location and every caller."""
    for caller in (client, Client()):
        answer = caller.get(url.format(text))
        assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
        problem = answer.json()
        assert problem["code"] == problem["errors"][0]["code"] == "invalid_text"
        assert problem["errors"][0]["pointer"].startswith(pointer)


@pytest.mark.parametrize("text", NOT_UTF8)
@pytest.mark.parametrize(
    "url",
    [
        "/p/alpha/runs?q={}",
        "/p/alpha/runs?{}=1",
        "/p/{}/runs",
        "/login?next={}",
        "/admin/runs/agentrun/?q={}",
        "/admin/auth/user/{}/change/",
        "/nowhere/{}",
    ],
)
def test_pages_show_an_error_for_invalid_text(text: str, url: str, client: Client) -> None:
    answer = client.get(url.format(text))

    assert (answer.status_code, answer["Content-Type"]) == (400, "text/html; charset=utf-8")
    assert "invalid_text" in answer.content.decode()


@pytest.mark.parametrize("text", NOT_UTF8)
@pytest.mark.parametrize("url", ["/login", f"{PAGE}/send", "/p/alpha/runs/new"])
def test_forms_refuse_invalid_text(text: str, url: str, client: Client) -> None:
    kind = "application/x-www-form-urlencoded"
    for body in (f"message={text}", f"{text}=message"):
        answer = client.post(url, body, content_type=kind)
        assert answer.status_code == 400
        assert "invalid_text" in answer.content.decode()
    parts = b'--b\r\nContent-Disposition: form-data; name="message"\r\n\r\n\xff\r\n--b--\r\n'
    assert b"invalid_text" in client.post(url, parts, content_type="multipart/form-data; boundary=b").content


def test_valid_text_is_accepted(client: Client) -> None:
    """Including the replacement character and characters outside the basic multilingual plane."""
    for text in ("é", "日本", "🙂", "\ufffd", "100%", "a b+c"):
        answer = client.get(f"{RUNS}?q={quote(text)}")
        assert answer.status_code == 200, text
    assert client.get(f"{RUNS}?q=a%2").status_code == 200  # an incomplete escape is plain text
    assert Client().post("/login", "username=%C3%A9&password=x", content_type="application/x-www-form-urlencoded")
    assert client.get("/p/%C3%A9/runs").status_code == 404


def raw(web: WebThread, target: bytes, *more: bytes) -> tuple[int, bytes]:
    """Send a request line without changes; return the status and the body."""
    lines = [b"GET " + target + b" HTTP/1.1", b"Host: localhost", *more, b""]
    return exchange(web, b"\r\n".join(lines))


def exchange(web: WebThread, head: bytes) -> tuple[int, bytes]:
    """Send a request line and headers; return the status and the body."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as line:
        line.sendall(head + b"Connection: close\r\n\r\n")
        whole = b""
        while piece := line.recv(65536):
            whole += piece
    begin, _, body = whole.partition(b"\r\n\r\n")
    return int(begin.split()[1]), body


def test_a_real_server_refuses_invalid_text(web: WebThread) -> None:
    """Servers decode URLs differently, and a separate handler serves the streams."""
    project = make_project("alpha")
    [(name, value)] = with_key(project).items()
    key = f"{name}: {value}".encode()
    runs = RUNS.encode()
    for target in (
        b"%s?q=%%FF" % runs,
        b"%s?q=%%ED%%A0%%80&limit=5" % runs,
        b"/api/projects/%FF/agent-runs",
        b"%s/events/stream?afterSeq=%%FF" % RUN.encode(),
        b"/runs/%C0%AF",
        b"/p/%ED%A0%80/runs/stream",
    ):
        status, body = raw(web, target, key)
        assert (status, b"invalid_text" in body) == (400, True), target
    assert raw(web, b"%s?q=%%C3%%A9" % runs, key)[0] == 200
    # Raw bytes without escapes: the server itself may refuse them.
    for target in (b"%s?q=\xff" % runs, b"%s/events/stream?q=\xff" % RUN.encode(), b"/api/projects/\xff/agent-runs"):
        assert raw(web, target, key)[0] == 400, target


# --- Unsupported methods ----------------------------------------------------------------------------------------

WRONG = ["PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "CONNECT", "BREW"]


@pytest.mark.slow
def test_pages_refuse_unsupported_methods_before_the_csrf_check(client: Client) -> None:
    """For every caller, with and without a CSRF token, for known and unknown objects."""
    wrong = []
    methods = [*WRONG, "POST", "GET", "HEAD"]
    # POST and PUT represent all methods that the CSRF check covers.
    for caller, tried in ((client, methods), (Client(enforce_csrf_checks=True), ["POST", "PUT"])):
        for address, served in cases(list(PAGES.items())):
            allowed = {"GET", "HEAD"} & set(served) | set(served) | ({"HEAD"} if _safe(address) else set())
            for method in tried:
                if method in allowed:
                    continue
                answer = caller.generic(method, filled(address, NOWHERE))
                if answer.status_code != 405 or set(answer["Allow"].split(", ")) != allowed:
                    wrong.append((method, address, answer.status_code, answer.get("Allow")))
    assert not wrong


def _safe(address: str) -> bool:
    return "GET" in PAGES[address] and not address.endswith("/stream")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("/", "GET, HEAD"),
        ("/login", "GET, POST, HEAD, OPTIONS"),
        ("/logout", "POST, OPTIONS"),
        ("/csp-report", "POST"),
        ("/api/docs", "GET, HEAD"),
        ("/admin/", "GET, HEAD, POST"),
        ("/admin/auth/user/", "GET, HEAD, POST"),
        ("/admin/projects/apikey/add/", "GET, HEAD, POST"),
    ],
)
def test_urls_outside_projects_refuse_unsupported_methods(url: str, allowed: str, client: Client) -> None:
    for method in ("PUT", "DELETE", "PATCH", "TRACE"):
        answer = client.generic(method, url)
        assert answer.status_code == 405, method
        assert set(answer["Allow"].split(", ")) == set(allowed.split(", "))
        assert "method_not_allowed" in answer.content.decode()


def test_every_page_declares_its_methods() -> None:
    """With Django's own decorators, the CSRF check would come before the method check."""
    pages = [*PAGES, "", "csp-report", "api/docs"]
    known = {address: view for address, view in _views(get_resolver("agentops.urls").url_patterns) if address in pages}

    assert set(known) == set(pages)
    assert not [address for address, view in known.items() if not hasattr(view, "methods")]
    assert set(pages) <= set(addresses(get_resolver("agentops.urls").url_patterns))


def _views(patterns: list[Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for entry in patterns:
        address = prefix + str(entry.pattern)
        if hasattr(entry, "url_patterns"):
            found += _views(entry.url_patterns, address)
        else:
            found.append((address, entry.callback))
    return found


def test_a_supported_method_still_requires_a_csrf_token(client: Client) -> None:
    assert methods_of(client.get) == ("GET", "HEAD", "POST")  # methods without a declaration
    answer = client.post(f"{PAGE}/stop")
    assert (answer.status_code, b"csrf_failed" in answer.content) == (403, True)


# --- Unknown hosts, and the log ---------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Any:
    """Collect the formatted lines of the site's log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.setFormatter(LogLine("%(levelname)s %(name)s %(message)s"))
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield lines
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("url", ["/login", "/api/projects", "/static/css/timeline.css", "/p/alpha/runs/stream"])
def test_an_unknown_host_is_one_log_line(host: str, url: str, logged: list[str]) -> None:
    answer = Client().get(url, HTTP_HOST=host)

    assert answer.status_code == 400
    assert "invalid_host" in answer.content.decode()
    [line] = logged
    assert line.startswith("WARNING agentops.base.http.middleware host refused: ")
    assert "\n" not in line
    assert "Traceback" not in line
    assert len(line) < 300


def test_every_endpoint_requires_one_host_with_a_valid_port(web: WebThread) -> None:
    for door in DOORS:
        for hosts in ([], ["localhost:65536"], ["localhost:" + "9" * 5000], ["localhost", "localhost"]):
            lines = b"".join(f"Host: {host}\r\n".encode() for host in hosts)
            if not (len(hosts) == 2 and door in ("/healthz", "/metrics")):  # probes may use any host
                assert exchange(web, f"GET {door} HTTP/1.1\r\n".encode() + lines)[0] == 400, (door, hosts)
        # HTTP/1.0 requires no Host header.
        assert exchange(web, f"GET {door} HTTP/1.0\r\n".encode())[0] != 400, door


def test_an_unknown_host_is_refused_before_the_https_redirect(settings: Any, logged: list[str]) -> None:
    settings.SECURE_SSL_REDIRECT = True
    assert Client().get("/login", HTTP_HOST="rebound.example").status_code == 400
    assert len(logged) == 1
    assert Client().get("/healthz", HTTP_HOST="10.0.0.7").status_code == 200


def test_a_client_error_logs_no_traceback(db: None, logged: list[str]) -> None:
    """Too many fields, a form over the size limit, and a malformed form."""
    client = Client()
    kind = "application/x-www-form-urlencoded"
    assert client.post("/login", "&".join(f"f{n}=" for n in range(2000)), content_type=kind).status_code == 400
    assert client.post("/login", "a=" + "x" * 3_000_000, content_type=kind).status_code == 413
    assert client.post("/login", b"--", content_type="multipart/form-data; boundary=\xff").status_code in (400, 422)

    assert logged
    assert not [line for line in logged if "Traceback" in line]


# --- Bodies with another run, and invalid names -----------------------------------------------------------------


@pytest.mark.django_db
def test_an_invalid_agent_name_is_refused_with_its_field() -> None:
    project = make_project("alpha")
    make_agent(project)
    client = Client(headers=with_key(project, "write"))
    for bad in ("../x", "a b", "Á", "\x00", "\ud800", "UPPER", "-x", "a_b", "x" * 64, ""):
        for url, body, pointer in (
            (RUNS, {"agent_id": bad}, "/agent_id"),
            (f"{RUNS}/resume", {"filter": {"agent_id": bad}}, "/filter/agent_id"),
        ):
            answer = client.post(url, body, content_type="application/json")
            assert answer.status_code == 422, (url, bad)
            faults = answer.json()["errors"]
            assert {fault["pointer"] for fault in faults} == {pointer}
            assert {fault["code"] for fault in faults} <= {"invalid_identifier", "blank", "max_length"}, (bad, faults)
    unknown = client.post(RUNS, {"agent_id": "nobody"}, content_type="application/json")
    assert (unknown.status_code, unknown.json()["code"]) == (422, "agent_not_found")
    assert make_person(project).pk
