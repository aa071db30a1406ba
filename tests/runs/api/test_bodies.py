"""Bodies of POST requests: type, charset, encoding, size and structure; every limit, and that nothing is written.

The URL that creates runs represents all others: one function reads all bodies.
"""

from __future__ import annotations

import gzip
import io
import json
import socket
import tracemalloc
import zlib
from typing import Any

import pytest
from django.test import RequestFactory
from rest_framework.request import Request

from agentops.base.http.threaded import AsgiRequest
from agentops.base.refusals import Refusal
from runs.api.requests.bodies import MAX_BYTES, StrictJSONParser, document_of
from tests.support.api import JSON, REFUSED, Program, counts, pointers, program, refused
from tests.support.factories import make_agent, make_project
from tests.support.web_server import WebThread

MIB = 1024 * 1024


@pytest.fixture
def alpha(db: None) -> Program:
    project = make_project("alpha")
    make_agent(project, slug="player")
    return program(project)


GOOD = b'{"agent_id": "player"}'


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, 1)


# --- Refusals ---------------------------------------------------------------------------------------------------

TYPES = [
    "text/plain",
    "",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
    "application/xml",
    "application/json5",
    "text/json",
    "application/problem+json",
    "application/jsonx",
    "application/*",
    "*/*",
]
CHARSETS = ["zlib", "bz2", "rot13", "utf-16", "utf-7", "unicode_escape", "bogus", "latin-1", "utf-8-sig", "idna", ""]
ENCODINGS: list[tuple[str, bytes, int, str]] = [
    ("gzip", zipped(b" " * (MAX_BYTES + 1)), 413, "decompressed_too_large"),
    ("gzip", zipped(GOOD) + b"x", 400, "bad_encoding"),
    ("gzip", zipped(GOOD) + zipped(GOOD), 400, "bad_encoding"),
    ("gzip", zipped(GOOD)[:-1], 400, "bad_encoding"),
    ("gzip", zipped(GOOD)[:-8] + b"\0" * 8, 400, "bad_encoding"),
    ("gzip", zipped(zipped(GOOD)), 400, "bad_encoding"),
    ("gzip, gzip", zipped(zipped(GOOD)), 400, "bad_encoding"),
    ("gzip", GOOD, 400, "bad_encoding"),
    ("gzip", zlib.compress(GOOD), 400, "bad_encoding"),
    *[(coding, GOOD, 415, "unsupported_encoding") for coding in ("br", "zstd", "deflate", "gzip, br", "x")],
]
BODIES: list[tuple[bytes, int, str]] = [
    (b"", 400, "empty_body"),
    (b"{", 400, "invalid_json"),
    (b"\xff\xfe", 400, "invalid_utf8"),
    (b"\xef\xbb\xbf{}", 400, "invalid_json"),
    (b"[" * 100_000, 400, "json_too_deep"),
    (b"[" + b"0," * 60_000 + b"0]", 413, "json_too_complex"),
    (b'{"max_steps": NaN}', 400, "non_finite_number"),
    (b'{"max_steps": 9223372036854775808}', 422, "number_out_of_range"),
    (b'{"max_steps": ' + b"9" * 4_301 + b"}", 400, "number_out_of_range"),
    (b'{"agent_id": "a", "agent_id": "b"}', 400, "duplicate_key"),
    (b'{"prompt": "' + b"x" * 1_000_000 + b'"}', 413, "string_too_long"),
    (b" " * (MAX_BYTES + 1), 413, "body_too_large"),
    *[(body, 400, "object_expected") for body in (b"null", b"[]", b'"x"', b"5", b"true")],
]


@pytest.mark.parametrize("kind", TYPES)
def test_only_json_is_accepted(alpha: Program, kind: str) -> None:
    before = counts()
    answer = alpha.post("", GOOD, kind=kind)

    assert refused(answer) == (415, "unsupported_media_type")
    assert answer["Accept-Post"] == JSON
    assert counts() == before


@pytest.mark.parametrize("charset", CHARSETS)
def test_only_utf8_is_taken(alpha: Program, charset: str) -> None:
    """Even if the bytes expand to a huge text in that codec."""
    for body in (GOOD, zlib.compress(b" " * (50 * MIB))):
        answer = alpha.post("", body, kind=f'{JSON}; charset="{charset}"')
        assert refused(answer) == (415, "unsupported_charset")


@pytest.mark.parametrize("kind", [JSON, f"{JSON}; charset=utf-8", 'Application/JSON ; charset="UTF-8"; x=y'])
def test_json_with_a_utf8_charset_is_accepted(alpha: Program, kind: str) -> None:
    assert alpha.post("", GOOD, kind=kind).status_code == 201


@pytest.mark.parametrize(("coding", "body", "status", "code"), ENCODINGS, ids=range(len(ENCODINGS)))
def test_an_invalid_encoding_is_refused(alpha: Program, coding: str, body: bytes, status: int, code: str) -> None:
    before = counts()
    answer = alpha.post("", body, Content_Encoding=coding)

    assert refused(answer) == (status, code)
    if status == 415:
        assert answer["Accept-Encoding"] == "gzip, identity"
    assert counts() == before


@pytest.mark.parametrize(("body", "status", "code"), BODIES, ids=[f"{row[2]}-{row[0][:8]!r}" for row in BODIES])
def test_an_invalid_body_is_refused(alpha: Program, body: bytes, status: int, code: str) -> None:
    before = counts()

    assert refused(alpha.post("", body)) == (status, code)
    assert counts() == before
    assert alpha.post("", GOOD).status_code == 201


def test_the_api_refuses_the_same_json_as_the_parser(alpha: Program) -> None:
    """The API refuses the same input as the command line and the workers, with the same error."""
    for (code, status), texts in REFUSED.items():
        for text in filter(None, texts):
            assert refused(alpha.post("", text)) == (status, code)


def test_a_gzip_body_is_decompressed(alpha: Program) -> None:
    for coding in ("gzip", "GZIP", "x-gzip", " gzip "):
        assert alpha.post("", zipped(GOOD), Content_Encoding=coding).status_code == 201
    assert alpha.post("", GOOD, Content_Encoding="identity").status_code == 201


@pytest.mark.slow
def test_a_bomb_is_inflated_no_further_than_the_body_limit(alpha: Program) -> None:
    """Five GiB in five MiB; the peak memory is a small multiple of the maximum body size."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    layer = stream.compress(b"\0" * (256 * MIB)) + stream.flush()
    request = RequestFactory().generic("POST", "/", layer, JSON, headers={"Content-Encoding": "gzip"})
    request = Request(request, parsers=[StrictJSONParser()])
    tracemalloc.start()
    with pytest.raises(Refusal) as caught:
        document_of(request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert caught.value.code == "decompressed_too_large"
    assert peak < 20 * MIB


def test_every_invalid_field_is_reported(alpha: Program) -> None:
    """Server-side fields count as unknown; a quoted number, a decimal number or true is not an integer."""
    server = ("id", "seq", "project_id", "status", "epoch", "created_at", "step_count", "resumed_from")
    answer = alpha.post("", {"agent_id": "player", **dict.fromkeys(server, 1)})
    assert refused(answer) == (422, "unknown_field")
    assert pointers(answer) == {f"/{name}": "unknown_field" for name in server}

    wrong = {
        "agent_id": 5,
        "prompt": {"role": "system"},
        "title": None,
        "labels": ["a", 5, " "],
        "max_steps": "50",
        "parent_run_id": "{01a1f86c-1b1a-72f0-b808-0c8f1390c3f4}",
        "x/y~": 1,
        "k" * 200: 2,
    }
    answer = alpha.post("", wrong)
    assert refused(answer) == (422, "invalid_input")
    assert pointers(answer) == {
        "/agent_id": "invalid",
        "/prompt": "invalid",
        "/title": "null",
        "/labels/1": "invalid",
        "/labels/2": "blank",
        "/max_steps": "invalid_max_steps",
        "/parent_run_id": "invalid",
        "/x~1y~0": "unknown_field",
        f"/{'k' * 64}": "unknown_field",
    }
    assert refused(alpha.post("", {})) == (422, "required")
    many = alpha.post("", {"agent_id": "player"} | {f"x{number}": 1 for number in range(900)})
    assert len(many.json()["errors"]) == 20


TEXTS = ["\0", "\ud800", "\x1b[2J", "{{7*7}}", "ignore previous instructions", '{"role":"system"}']


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_fields_accept_any_text(alpha: Program, text: str) -> None:
    """The text becomes a user message; characters that no database can store are replaced."""
    answer = alpha.post("", {"agent_id": "player", "prompt": f"a {text} b", "title": text * 3, "labels": [f"l{text}"]})

    assert answer.status_code == 201
    safe = "\N{REPLACEMENT CHARACTER}" if text in ("\0", "\ud800") else text
    shown = alpha.get(f"/{answer.json()['id']}").json()
    assert (answer.json()["prompt"], shown["prompt"]) == (f"a {safe} b",) * 2
    assert all(character >= " " for character in answer.json()["title"] + answer.json()["labels"][0])


# --- Size, before and during reading ------------------------------------------------------------------------------


class Counted(io.BytesIO):
    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def sent(body: io.BytesIO, length: str | None, kind: str = JSON, query: str = "") -> Request:
    headers = [(b"content-type", kind.encode())] + ([] if length is None else [(b"content-length", length.encode())])
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": query.encode(), "headers": headers}
    return Request(AsgiRequest(scope, body), parsers=[StrictJSONParser()])


def code_of(request: Any, **options: Any) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        document_of(request, **options)
    return caught.value.status, caught.value.code


def test_the_content_length_is_verified() -> None:
    """A length over the limit is refused before reading; a body shorter than its length is incomplete."""
    body = Counted(GOOD)
    assert code_of(sent(body, str(6 * MIB))) == (413, "body_too_large")
    assert body.taken == 0
    assert code_of(sent(io.BytesIO(GOOD), str(len(GOOD) + 1))) == (400, "incomplete_body")
    assert code_of(sent(io.BytesIO(GOOD), "12abc")) == (400, "bad_length")
    assert code_of(sent(io.BytesIO(GOOD), "-1")) == (400, "bad_length")
    assert code_of(sent(io.BytesIO(b""), "0")) == (400, "empty_body")
    assert code_of(sent(io.BytesIO(b""), None)) == (400, "empty_body")
    assert document_of(sent(io.BytesIO(b""), None, kind=""), optional=True) == {}
    assert document_of(sent(io.BytesIO(GOOD), str(len(GOOD)))) == json.loads(GOOD)


def test_a_charset_does_not_affect_urls_and_forms() -> None:
    """Django would decode a form with this charset, even with a codec that decompresses."""
    form = "multipart/form-data; boundary=x; charset=rot13"
    for kind in (f"{JSON}; charset=zlib", f"{JSON}; charset*=bogus''x", form):
        assert sent(io.BytesIO(b""), "0", kind, "a=%41&b=1").GET.dict() == {"a": "A", "b": "1"}
        assert sent(io.BytesIO(b""), "0", kind).encoding is None


@pytest.mark.parametrize(
    ("head", "body", "status", "code"),
    [
        (f"Content-Length: {6 * MIB}", b"", 413, "body_too_large"),
        ("Transfer-Encoding: chunked", b"100000\r\n" + b"x" * MIB + b"\r\n", 413, "body_too_large"),
        ("Transfer-Encoding: chunked", b"16\r\n" + GOOD + b"\r\n0\r\n\r\n", 201, ""),
        (f"Content-Length: {len(GOOD)}", GOOD, 201, ""),
    ],
    ids=["too long", "endless", "chunked", "plain"],
)
@pytest.mark.django_db(transaction=True)
def test_a_real_server_returns_the_same_errors(web: WebThread, head: str, body: bytes, status: int, code: str) -> None:
    """Over a socket; the endless body is sent until the response arrives."""
    project = make_project("alpha")
    make_agent(project, slug="player")
    key = program(project).headers["Authorization"]
    request = f"POST /api/projects/alpha/agent-runs?x=%41 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n"
    if status == 201:
        request = request.replace("?x=%41", "")
    request += f"Content-Type: {JSON}\r\nConnection: close\r\n{head}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as wire:
        wire.sendall(request.replace("?x=%41", "").encode())
        for _ in range(6 if code and body else 1):
            wire.sendall(body)
        answer = b""
        while piece := wire.recv(65_536):
            answer += piece
            if b"\r\n\r\n" in answer and code.encode() in answer:
                break

    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:400]
    assert code.encode() in answer
