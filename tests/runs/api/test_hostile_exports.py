"""Exports with hostile names, parameters and clients: file names, errors, and readers that disconnect."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest
from django.test import Client

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.factories import drive, make_agent, make_person, make_project, make_run, with_key
from tests.support.project_rows import append
from tests.support.timing import eventually
from tests.support.web_server import WebThread

NAME = re.compile(r'attachment; filename="[A-Za-z0-9][A-Za-z0-9._-]*"')
HOSTILE = '"; filename=x.html\r\nX-Forged: 1 ../../é\u202e<script>'
RUNS = "/api/projects/alpha/agent-runs"


@pytest.fixture
def run(db: None) -> AgentRun:
    run = drive(make_run(make_agent(make_project("alpha"))))
    AgentRun.objects.filter(pk=run.pk).update(title=HOSTILE, labels=[HOSTILE])
    return run


def urls(run: AgentRun) -> list[str]:
    formats = ("json", "events", "messages", "tool-calls", "html")
    return [
        *(f"{RUNS}/{run.pk}/export?format={each}" for each in formats),
        *(f"{RUNS}/export?format={each}" for each in ("jsonl", "csv")),
        *(f"/runs/{run.pk}/export/{each}" for each in formats),
        *(f"/p/alpha/runs/export/{each}" for each in ("jsonl", "csv")),
    ]


def test_files_have_names_of_the_server(run: AgentRun) -> None:
    viewer = Client()
    viewer.force_login(make_person(run.project, Role.VIEWER))
    for url in urls(run):
        answer: Any = viewer.get(url)
        assert answer.status_code == 200, url
        assert NAME.fullmatch(answer["Content-Disposition"]), url
        assert "X-Forged" not in answer.headers
        assert answer["X-Content-Type-Options"] == "nosniff"
        body = b"".join(answer.streaming_content)
        assert b"<script>" not in body or not answer["Content-Type"].startswith("text/html")


def test_what_cannot_be_exported_is_refused(run: AgentRun) -> None:
    reader, sender = Client(headers=with_key(run.project, "read")), Client(headers=with_key(run.project, "ingest"))
    stranger = Client(headers=with_key(make_project("beta"), "read"))
    for url in urls(run)[:7]:
        assert reader.get(f"{url}&bogus=1").status_code == 400, url
        assert reader.get(re.sub("format=[a-z-]+", "format=../x", url)).status_code == 400, url
        assert reader.post(url).status_code == 405
        assert sender.get(url).status_code == 403
        assert stranger.get(url).status_code == 404
        assert Client().get(url).status_code == 401
    for number in ("00000000-0000-0000-0000-000000000000", "x", "..%2f"):
        assert reader.get(f"{RUNS}/{number}/export").status_code == 404


def test_a_reader_that_leaves_ends_the_export(web: WebThread) -> None:
    run = make_run(make_agent(make_project("alpha")))
    append(run, *("x" * 20_000 for _ in range(300)))
    [(name, value)] = with_key(run.project, "read").items()
    head = f"GET {RUNS}/{run.pk}/export?format=events HTTP/1.1\r\nHost: localhost\r\n{name}: {value}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as wire:
        wire.sendall(head.encode())
        assert wire.recv(1000).startswith(b"HTTP/1.1 200")
        # 6 MB: the server cannot have sent everything yet.
        assert web.open_requests == 1

    eventually(lambda: web.open_requests == 0, why="the export goes on for a reader that has left", within_s=20)
