"""agentops.client is independent of the server: it needs no server code, no Django and no settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import httpx
import pytest

from agentops.client import ApiError, ServerUnavailable
from agentops.client.connection import document_of
from agentops.client.event_stream import Frame, FrameParser

SCRIPT = """
import json, sys
from agentops import client
client.Client("http://127.0.0.1:1", "key").close()
client.Recorder("http://127.0.0.1:1", "key", agent="a")
names = {name for name in sys.modules if name.startswith("agentops.") and not name.startswith("agentops.client")}
print(json.dumps([sorted(names), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_client_imports_no_server_code(tmp_path: object) -> None:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={"PATH": ""}, cwd=str(tmp_path), capture_output=True, text=True, check=True
    )

    of_agentops, packages = json.loads(process.stdout)
    assert of_agentops == []
    assert not {"django", "rest_framework", "celery", "redis", "psycopg", "runs", "timeline"} & set(packages)


def test_frames_may_be_split_anywhere() -> None:
    stream = "\ufeff: hi\nretry: 1500\r\n\r\nid: 1\ndata: a\u2028b\r\rid:2\nevent: end\ndata:\ndata: x\n\n".encode()
    frames = [Frame("message", "a\u2028b", "1"), Frame("end", "\nx", "2")]

    for size in (1, 2, 3, len(stream)):
        parser = FrameParser()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [frame for piece in pieces for frame in parser.feed(piece)] == frames
        assert parser.retry_s == 1.5


@pytest.mark.parametrize("status", [500, 507, 520, 599])
def test_server_failures_raise_server_unavailable(status: int) -> None:
    with pytest.raises(ServerUnavailable):
        document_of(httpx.Response(status, text="error"))


def test_redirect_is_not_followed_and_the_error_names_its_target() -> None:
    """A site that only accepts HTTPS, and `http://` in a program's settings."""
    with pytest.raises(ApiError) as refusal:
        document_of(httpx.Response(301, headers={"Location": "https://ops.example.org/api/projects"}))

    assert (refusal.value.status, "https://ops.example.org" in refusal.value.detail) == (301, True)


def test_announced_removal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Deprecation": "@1803859200", "Sunset": "Fri, 01 Oct 2027 00:00:00 GMT"}
    request = httpx.Request("POST", "https://ops.example.org/api/projects/web/agent-runs")

    for _ in range(2):
        assert document_of(httpx.Response(200, json={"a": 1}, headers=headers, request=request)) == {"a": 1}

    [record] = caplog.records
    assert (record.name, record.levelname) == ("agentops.client", "WARNING")
    assert record.message == (
        "agentops: POST /api/projects/web/agent-runs is deprecated and is served until "
        "Fri, 01 Oct 2027 00:00:00 GMT: upgrade this client"
    )


#: Loads all commands and pages of a site that is installed without the client. `write_reference` documents the client.
SITE = """
import sys
sys.modules["agentops.client"] = sys.modules["agentops.durable"] = None
import django
django.setup()
from django.core.management import get_commands, load_command_class
own = {"agentops", "agentops.accounts", "agentops.admin", "runs", "timeline"}
commands = {name: app for name, app in get_commands().items() if app in own and name != "write_reference"}
for name, app in commands.items():
    load_command_class(app, name)
import agentops.urls, agentops.asgi, agentops.celery
agentops.celery.app.loader.import_default_modules()
print(sorted(commands))
"""


def test_the_site_works_without_the_client() -> None:
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "agentops.settings"}
    done = subprocess.run([sys.executable, "-c", SITE], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert {"'up'", "'worker'", "'agent'"} <= set(done.stdout.strip("[]\n").split(", "))
