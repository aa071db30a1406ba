"""Responses of the streams before they stream: to invalid cursors, other methods, and users without access."""

from __future__ import annotations

import json
import re
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from httpx_sse import EventSource

from agentops.accounts.models import Role
from tests.support.factories import make_agent, make_person, make_run, signed_in, with_key
from tests.support.stream_clients import Refusal, heard
from tests.support.timelines import StreamedRun, finish, grow, last_seq
from tests.support.timing import eventually
from timeline.live import client

#: Headers that differ between any two responses.
OWN_TO_EACH = {"date", "x-request-id", "set-cookie", "ratelimit-remaining", "ratelimit-reset"}
#: Request IDs, CSRF tokens, and the time.
RANDOM = re.compile(rb"\b[0-9a-f]{32}\b|\b[0-9A-Za-z]{64}\b|data-now=\S+")
BAD = [
    "abc",
    "-5",
    "+5",
    "1e9",
    "x:1",
    "9" * 400,
    str(2**63),
    "NaN",
    "1.",
    ".1",
    "1.-1",
    "1.0.0",
    "0x10",
    "1 2",
    "null",
]


def plain(answer: Refusal) -> tuple[int, dict[str, str], bytes]:
    return (
        answer.status,
        {n: v for n, v in answer.headers.items() if n not in OWN_TO_EACH},
        RANDOM.sub(b"*", answer.body),
    )


def code_of(answer: Refusal) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    document = json.loads(answer.body)
    assert document["status"] == answer.status
    return str(document["code"])


# --- Cursors ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_bad_cursor_is_refused(streamed: StreamedRun) -> None:
    for cursor in BAD:
        asked = f"?afterSeq={quote(cursor)}"
        header = streamed.listeners.ask(streamed.url, streamed.cookie | {"Last-Event-ID": cursor})
        query = streamed.listeners.ask(streamed.url + asked, streamed.cookie)
        assert (header.status, code_of(header)) == (400, "invalid_last_event_id"), cursor
        assert (query.status, code_of(query)) == (400, "invalid_after_seq"), cursor
        assert streamed.listeners.ask(streamed.page_url, streamed.cookie | {"Last-Event-ID": cursor}).status == 400, (
            cursor
        )
        assert streamed.listeners.ask(streamed.page_url + asked, streamed.cookie).status == 400, cursor


def test_a_cursor_of_invalid_bytes_is_refused(streamed: StreamedRun) -> None:
    for raw in ("%D9%A1%D9%A2", "1%00", "1%0D%0AX-Own:%201", "%F0%9F%92%A9"):
        assert (
            code_of(streamed.listeners.ask(f"{streamed.url}?afterSeq={raw}", streamed.cookie)) == "invalid_after_seq"
        ), raw
    assert code_of(streamed.listeners.ask(f"{streamed.url}?afterSeq=%FF%FE", streamed.cookie)) == "invalid_text"


def test_an_invalid_header_is_refused_even_with_a_valid_query(streamed: StreamedRun) -> None:
    assert (
        streamed.listeners.ask(f"{streamed.url}?afterSeq=1", streamed.cookie | {"Last-Event-ID": "abc"}).status == 400
    )


def test_parameters_of_the_library_below_choose_nothing(streamed: StreamedRun) -> None:
    other = make_run(make_agent())
    grow(other, 20)
    for query in ("es-meta=garbage", "recover=true", "link=next", f"channel=log:{other.pk}", "lastEventId=1"):
        assert code_of(streamed.listeners.ask(f"{streamed.url}?{query}", streamed.cookie)) == "unknown_parameter", query


# --- Headers and retry interval ---------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["url", "page_url"])
def test_the_headers_disable_buffering_in_proxies(streamed: StreamedRun, address: str) -> None:
    reader = streamed.listeners.open(getattr(streamed, address), streamed.cookie)
    eventually(lambda: reader.messages, why="the stream begins")

    [answer] = reader.answers
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert "no-cache" in answer.headers["cache-control"]
    assert "no-transform" in answer.headers["cache-control"]
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert "content-encoding" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers
    # It comes before all else, and is spread so that clients do not all reconnect at once after a restart.
    assert 1000 <= (reader.messages[0].retry_ms or 0) <= 5000


def test_httpx_sse_sees_no_event_in_a_retry_interval_or_heartbeat() -> None:
    """It treats every empty line after the first ID as the end of an event, even of an event without data."""
    event = b"id: 1\nevent: message\ndata: x\n\n"
    body = client.retry_line() + event + client.HEARTBEAT + client.HEARTBEAT + event.replace(b"1", b"2")
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    told = [(each.id, each.data) for each in EventSource(response).iter_sse()]
    assert told == [("1", "x"), ("2", "x")]


def test_the_retry_interval_is_spread(streamed: StreamedRun) -> None:
    readers = [streamed.open() for _ in range(12)]
    eventually(lambda: all(reader.messages for reader in readers), why="the streams begin")

    pauses = {reader.messages[0].retry_ms or 0 for reader in readers}
    assert len(pauses) > 6
    assert all(1000 <= pause <= 5000 for pause in pauses)


def test_it_speaks_http_1_0(streamed: StreamedRun) -> None:
    last = finish(streamed.run)
    told = streamed.listeners.read_to_end(streamed.url, streamed.cookie, version="1.0")

    assert [int(m.id or 0) for m in told if m.event == "message" and m.data] == [*range(1, last + 1)]
    assert told[-1].event == "end"


@pytest.mark.parametrize("address", ["url", "page_url"])
def test_only_get_streams(streamed: StreamedRun, address: str) -> None:
    for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        answer = streamed.listeners.ask(
            getattr(streamed, address), streamed.cookie | {"Content-Length": "0"}, method=method
        )
        assert (answer.status, answer.headers.get("allow")) == (405, "GET"), method


# --- Who may read -----------------------------------------------------------------------------------------------


def test_a_key_may_read(streamed: StreamedRun) -> None:
    last = last_seq(streamed.run)
    for scope in ("read", "write"):
        heard(streamed.listeners.open(streamed.url, with_key(streamed.project, scope)), [*range(1, last + 1)])


def test_the_project_may_be_named_by_its_id(streamed: StreamedRun) -> None:
    url = streamed.url.replace(f"/{streamed.project.slug}/", f"/{streamed.project.pk}/")

    heard(streamed.listeners.open(url, streamed.cookie), [*range(1, last_seq(streamed.run) + 1)])


def test_reading_requires_credentials(streamed: StreamedRun) -> None:
    assert code_of(streamed.listeners.ask(streamed.url)) == "auth_required"
    assert streamed.listeners.ask(streamed.url).status == 401
    # No redirect: an EventSource would treat the login page as the response.
    assert streamed.listeners.ask(streamed.page_url).status == 401


def test_an_invalid_key_is_refused_even_with_a_valid_session(streamed: StreamedRun) -> None:
    for header in ("Bearer aok_test_nonsense", "Bearer ", "Basic YTpi", "Bearer " + "x" * 5000):
        assert streamed.listeners.ask(streamed.url, streamed.cookie | {"Authorization": header}).status == 401, header


def test_an_ingest_key_may_not_read(streamed: StreamedRun) -> None:
    answer = streamed.listeners.ask(streamed.url, with_key(streamed.project, "ingest"))

    assert (answer.status, code_of(answer)) == (403, "scope_required")


def test_a_foreign_run_looks_like_an_unknown_one(streamed: StreamedRun) -> None:
    foreign = make_run(make_agent())
    own = f"{streamed.web.url}/api/projects/{streamed.project.slug}/agent-runs"
    theirs = f"{streamed.web.url}/api/projects/{foreign.project.slug}/agent-runs"
    nobodys = f"{streamed.web.url}/api/projects/no-such-project/agent-runs"
    asked = [
        f"{own}/{uuid4()}/events/stream",
        f"{own}/{foreign.pk}/events/stream",
        f"{theirs}/{foreign.pk}/events/stream",
        f"{nobodys}/{foreign.pk}/events/stream",
        f"{theirs}/{streamed.run.pk}/events/stream",
    ]
    for headers in (streamed.cookie, with_key(streamed.project)):
        unknown_run, foreign_run, *projects = [plain(streamed.listeners.ask(url, headers)) for url in asked]
        assert unknown_run[0] == 404
        assert foreign_run == unknown_run
        assert projects == [projects[0]] * 3
        assert projects[0][0] == 404

    pages = [
        plain(streamed.listeners.ask(f"{streamed.web.url}/runs/{pk}/stream", streamed.cookie))
        for pk in (uuid4(), foreign.pk)
    ]
    assert pages[0] == pages[1]
    assert pages[0][0] == 404
    assert str(foreign.pk).encode() not in pages[1][2]


def test_a_page_of_another_site_cannot_read(streamed: StreamedRun) -> None:
    for origin in ("https://evil.example", "null", streamed.web.url.replace("127.0.0.1", "localhost")):
        answer = streamed.listeners.ask(streamed.url, streamed.cookie | {"Origin": origin})
        assert (answer.status, code_of(answer)) == (403, "foreign_origin")
        assert streamed.listeners.ask(streamed.page_url, streamed.cookie | {"Origin": origin}).status == 403

    heard(streamed.open(headers={"Origin": streamed.web.url}), [*range(1, last_seq(streamed.run) + 1)])


def test_another_host_is_refused(streamed: StreamedRun) -> None:
    answer = httpx.get(streamed.url, headers=streamed.cookie | {"Host": "evil.example"})

    assert answer.status_code == 400


def test_membership_of_another_project_gives_no_access(streamed: StreamedRun) -> None:
    stranger = signed_in(make_person(make_run(make_agent()).project, Role.ADMIN))

    assert streamed.listeners.ask(streamed.url, stranger).status == 404
    assert streamed.listeners.ask(streamed.page_url, stranger).status == 404
