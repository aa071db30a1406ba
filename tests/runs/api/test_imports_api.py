"""File uploads through the API: as a form or as the request body, errors, and responses."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils.html import strip_tags
from pytest_django import Settings

from agentops.accounts.models import Project, Role
from runs.external import import_execution
from runs.models import AgentRun, FileImport
from tests.support.factories import make_person, make_project, with_key
from tests.support.recordings import recording

pytestmark = pytest.mark.django_db
CHAT = json.dumps([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]).encode()


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def url(project: Project) -> str:
    return f"/api/projects/{project.slug}/imports"


@pytest.fixture
def runner(project: Project) -> Client:
    return Client(headers=with_key(project, "ingest"))


def file(name: str = "chat.json", content: bytes = CHAT) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content)


@pytest.mark.every_database
def test_a_form_and_a_raw_body_are_imported(url: str, runner: Client, project: Project) -> None:
    form = runner.post(url, {"file": [file("a.json"), file("b.json", b"{}")], "format": "openai-chat"})
    raw = runner.post(f"{url}?name=c.json", CHAT, content_type="application/octet-stream")

    assert (form.status_code, raw.status_code) == (202, 202)
    [a, b], [c] = form.json()["results"], raw.json()["results"]
    assert [one["file_name"] for one in (a, b, c)] == ["a.json", "b.json", "c.json"]
    assert (a["state"], a["size"], a["format"], a["events"], c["format"]) == (
        "waiting",
        len(CHAT),
        "openai-chat",
        None,
        "",
    )
    assert a["sha256"] == c["sha256"] != b["sha256"]
    assert (raw["Location"], "Location" in form) == (f"{url}/{c['id']}", False)

    while import_execution.import_next():
        pass
    [run] = AgentRun.objects.filter(project=project)
    done = runner.get(raw["Location"])
    assert runner.get(raw["Location"], headers={"If-None-Match": done["ETag"]}).status_code == 304
    shown = done.json()
    assert (shown["state"], shown["format"], shown["error"]) == ("done", "openai-chat", "")
    assert (shown["new_runs"], shown["unchanged_runs"], shown["run_ids"]) == (0, 1, [str(run.pk)])
    assert done.json()["events_done"] == done.json()["events"] > 0
    refused = runner.get(f"{url}/{b['id']}").json()
    assert (refused["state"], refused["error"].startswith("b.json: ")) == ("refused", True)

    first = runner.get(f"{url}?limit=2").json()
    second = runner.get(first["next"]).json()
    assert [row["id"] for row in first["results"] + second["results"]] == [c["id"], b["id"], a["id"]]
    assert (second["next"], runner.get(second["previous"]).json()["results"]) == (None, first["results"])


@pytest.mark.every_database
def test_damaged_lines_are_reported_or_the_file_is_refused(url: str, runner: Client, project: Project) -> None:
    """The pages of the import and of the run report them too."""
    content = recording("public-cases/03-damaged-line/cut-line-in-the-middle.jsonl").read_bytes() + b'{"type":'
    runner.post(f"{url}?name=s.jsonl&strict=true", content, content_type="application/octet-stream")
    runner.post(url, {"file": [file("s.jsonl", content)], "strict": "false"})
    while import_execution.import_next():
        pass

    imported, strict = runner.get(url).json()["results"]
    assert (strict["strict"], strict["state"], strict["error"].partition(": ")[0]) == (True, "refused", "s.jsonl:3")
    assert (strict["left_out"], strict["left_out_lines"], strict["cut_line"]) == (0, [], None)
    reason = "Unterminated string starting at: column 139"
    assert (imported["strict"], imported["state"], imported["left_out"]) == (False, "done", 1)
    assert (imported["left_out_lines"], imported["cut_line"]) == ([{"line": 3, "reason": reason}], 6)

    [run] = AgentRun.objects.filter(project=project)
    browser = Client()
    browser.force_login(make_person(project, Role.VIEWER))
    page = strip_tags(browser.get(f"/p/alpha/imports/{imported['id']}").content.decode())
    assert f"Line 3: {reason}" in page
    assert "Line 6, the last one, is not complete." in page
    assert "1 damaged line left out" in strip_tags(browser.get("/p/alpha/imports").content.decode())
    assert f"Line 3 was left out of s.jsonl: {reason}" in strip_tags(browser.get(f"/runs/{run.pk}").content.decode())
    wrong = runner.post(url, {"file": [file()], "strict": "maybe"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_value")


def test_a_runner_s_key_sees_its_imports_and_readers_see_all(url: str, runner: Client, project: Project) -> None:
    [mine] = runner.post(url, {"file": file()}).json()["results"]
    other = Client(headers=with_key(project, "ingest"))
    assert other.get(url).json()["results"] == []
    assert (other.get(f"{url}/{mine['id']}").status_code, other.get(f"{url}/{mine['id']}").json()["code"]) == (
        404,
        "import_not_found",
    )
    viewer = Client()
    viewer.force_login(make_person(project, Role.VIEWER))
    for reader in (Client(headers=with_key(project, "read")), viewer):
        assert [row["id"] for row in reader.get(url).json()["results"]] == [mine["id"]]
        assert reader.post(url, {"file": file()}).status_code == 403

    operator = Client(enforce_csrf_checks=True)
    operator.force_login(make_person(project, Role.OPERATOR))
    assert operator.post(url, {"file": file()}).json()["code"] == "csrf_failed"
    assert FileImport.objects.count() == 1


def multipart(*parts: str) -> bytes:
    return "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in parts).encode() + b"--b--\r\n"


FORM = "multipart/form-data; boundary=b"
REFUSED: list[tuple[str, bytes, dict[str, Any], int, str]] = [
    ("no file", multipart('name="format"\r\n\r\ninspect'), {"content_type": FORM}, 422, "invalid_upload"),
    ("another field", multipart('name="title"\r\n\r\na'), {"content_type": FORM}, 422, "unknown_field"),
    ("a file elsewhere", multipart('name="a"; filename="a"\r\n\r\na'), {"content_type": FORM}, 422, "unknown_field"),
    ("an empty file", multipart('name="file"; filename="a"\r\n\r\n'), {"content_type": FORM}, 422, "invalid_upload"),
    ("no boundary", b"a", {"content_type": "multipart/form-data"}, 400, "bad_request"),
    ("an empty body", b"", {"content_type": "application/octet-stream"}, 422, "invalid_upload"),
    ("curl's default", CHAT, {"content_type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
    ("gzip", CHAT, {"content_type": "a/b", "headers": {"Content-Encoding": "gzip"}}, 415, "unsupported_encoding"),
    ("too large", b"x" * (2**20 + 1), {"content_type": "text/plain"}, 413, "body_too_large"),
    ("a parameter", CHAT, {"content_type": "text/plain", "query": "?nme=a"}, 400, "unknown_parameter"),
    ("a format", CHAT, {"content_type": "text/plain", "query": "?format=word"}, 422, "invalid_upload"),
]


@pytest.mark.parametrize("case", REFUSED, ids=[one[0] for one in REFUSED])
def test_an_invalid_upload_is_refused(
    url: str, runner: Client, settings: Settings, case: tuple[str, bytes, dict[str, Any], int, str]
) -> None:
    settings.AGENTOPS_UPLOAD_MIB = 1
    _, body, options, status, code = case
    options = dict(options)
    answer = runner.post(url + options.pop("query", ""), body, **options)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer["Content-Type"] == "application/problem+json"
    assert not FileImport.objects.exists()


def test_a_full_queue_returns_retry_after(url: str, runner: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.external.uploads.MAX_UNFINISHED", 0)
    answer = runner.post(url, {"file": io.BytesIO(CHAT)})

    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (429, "too_many_imports", "60")
