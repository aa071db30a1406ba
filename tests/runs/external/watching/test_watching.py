"""Session files followed while they grow leave the same rows as a single import."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from agentops.accounts.models import Project
from runs.external import followed_file, growing_file
from tests.support.clients import WatchedSite
from tests.support.recordings import check_run, content_of, counts, import_path, recording
from timeline.models import Event

pytestmark = pytest.mark.django_db

#: Sessions with sub-agents, parallel calls, thinking, progress lines of a sub-agent, and of other programs.
GROWING = [
    "claude-code-growing/768de5d6.1.jsonl",
    "claude-code/7e-d4051c8a85-0.jsonl",
    "claude-code/5c-1039ad85f4-0.jsonl",
    "claude-code/4c-02af2759b6-0.jsonl",
]


def data(name: str) -> Path:
    return recording(name)


def pieces(path: Path, seed: int) -> Iterator[bytes]:
    """Yield the content in parts of several lines, some of which are torn."""
    content, rnd, start = path.read_bytes(), random.Random(seed), 0
    lines = content.count(b"\n")
    while start < len(content):
        end = start
        for _ in range(rnd.randint(1, max(lines // 12, 1))):
            end = content.find(b"\n", end) + 1 or len(content)
        end = min(end + rnd.choice([0, 0, 1, 40]), len(content))
        yield content[start:end]
        start = end


def assert_as_imported(site: WatchedSite, path: Path) -> None:
    """Check that the project has the same rows as one import of the file, and that another import adds nothing."""
    other = Project.objects.create(slug="imported", name="Imported")
    once = sorted(import_path(other, path).runs, key=lambda run: run.external_id or "")
    watched = site.runs()
    assert [run.external_id for run in watched] == [run.external_id for run in once]
    for run, reference in zip(watched, once, strict=True):
        check_run(run)
        assert content_of(run) == content_of(reference)
        assert (run.status, run.status_reason) == (reference.status, reference.status_reason)
        assert run.parent_run_id is None or run.parent_run.external_id == reference.parent_run.external_id
    before = counts(site.project)
    import_path(site.project, path)
    assert counts(site.project) == before


@pytest.mark.parametrize(("name", "is_remote"), [*((name, False) for name in GROWING), (GROWING[1], True)])
def test_a_growing_session_is_visible_while_it_grows(site: WatchedSite, name: str, is_remote: bool) -> None:
    site.is_remote = is_remote
    site.restart()
    path = site.folder / data(name).name
    seen = []
    for number, piece in enumerate(pieces(data(name), seed=len(name))):
        with path.open("ab") as file:
            file.write(piece)
        if number % 4 == 3:
            site.restart()
        site.round()
        seen.append(Event.objects.filter(log__project=site.project).count())
        assert {run.status for run in site.runs() if run.parent_run_id is None} <= {"running"}
    site.settle()

    assert site.warned == []
    assert seen == sorted(seen)
    assert len(set(seen)) > len(seen) / 2
    assert_as_imported(site, data(name))
    assert "host:test" in site.runs()[0].labels
    # The duration of a session discovered later does not extend to its discovery.
    assert all(run.log.last_event_at < timezone.now() - timedelta(days=1) for run in site.runs())


def test_the_last_answer_is_visible_before_it_is_complete(site: WatchedSite) -> None:
    lines = data("claude-code-growing/768de5d6.0.jsonl").read_text().splitlines()
    answer = next(number for number, line in enumerate(lines) if '"type":"text"' in line and '"assistant"' in line)
    path = site.folder / "session.jsonl"
    path.write_text("\n".join(lines[: answer + 1]) + "\n")
    site.round()

    [run] = site.runs()
    last = Event.objects.filter(log=run.pk).order_by("-seq").first()
    [text] = [block["text"] for block in json.loads(lines[answer])["message"]["content"]]
    assert last is not None
    assert (last.type, last.payload) == ("llm.text", {"text": text})
    positions = run.messages.count()
    site.settle()
    assert run.messages.count() == positions + 1


@pytest.mark.parametrize("name", GROWING[:2])
def test_a_large_file_is_read_from_disk_and_stored_in_batches(
    site: WatchedSite, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its records are not kept, and a batch does not know the events of the previous one."""
    monkeypatch.setattr(growing_file, "MAX_KEPT", 20_000)
    monkeypatch.setattr(followed_file, "BATCH", 7)
    path = site.folder / "session.jsonl"
    lines = data(name).read_bytes().splitlines(keepends=True)
    for count in (3, len(lines) // 2, len(lines)):
        path.write_bytes(b"".join(lines[:count]) + b'{"type":')
        site.round()
    path.write_bytes(b"".join(lines))
    site.round()
    site.settle()

    assert site.warned == []
    assert_as_imported(site, data(name))


def test_a_bad_line_is_reported_once_and_loses_nothing_before_it(site: WatchedSite) -> None:
    lines = data("claude-code-growing/768de5d6.0.jsonl").read_bytes().splitlines(keepends=True)
    path = site.folder / "session.jsonl"
    path.write_bytes(b"".join(lines[:12]) + b'{"type":"user",\n')
    site.round()
    site.round()
    assert len(site.warned) == 1
    assert "session.jsonl: left out line 13: " in site.warned[0]
    [run] = site.runs()
    assert run.log.events.filter(type="import.left_out").count() == 1

    path.write_bytes(b"".join(lines))
    site.round()
    site.settle()
    assert_as_imported(site, data("claude-code-growing/768de5d6.0.jsonl"))


def test_files_that_are_replaced_renamed_or_deleted(site: WatchedSite) -> None:
    path = site.folder / "session.jsonl"
    shutil.copy(data("claude-code-growing/768de5d6.1.jsonl"), path)
    site.round()
    # A program that writes its file anew.
    os.replace(shutil.copy(data("claude-code-growing/768de5d6.2.jsonl"), site.folder / "new"), path)
    site.round()
    path.rename(site.folder / "renamed.jsonl")
    site.round()
    site.settle()
    assert site.warned == []
    assert_as_imported(site, data("claude-code-growing/768de5d6.2.jsonl"))
    (site.folder / "renamed.jsonl").unlink()
    site.round()
    assert site.warned == []


def test_documents_and_other_files(site: WatchedSite) -> None:
    shutil.copy(next(data("gemini-cli").glob("*.json")), site.folder)
    shutil.copy(next(data("codex").glob("*.jsonl")), site.folder)
    (site.folder / "settings.json").write_text('{"theme": "dark"}')
    (site.folder / "empty.jsonl").write_text("")
    # A copy saved with /chat save.
    saved = [{"role": role, "parts": [{"text": "Hello"}]} for role in ("user", "model")]
    (site.folder / "checkpoint-hello.json").write_text(json.dumps(saved))
    site.round()
    site.settle()
    assert site.warned == []
    assert [str(run.external_id).partition(":")[0] for run in site.runs()] == ["codex", "gemini-cli"]
    for run in site.runs():
        check_run(run)


def test_an_answer_rewritten_with_its_calls(site: WatchedSite) -> None:
    """As Gemini CLI does: first the text, then the tokens, and the calls once their tools have ended."""
    about = {"sessionId": "s", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z"}
    answer = {"id": "2", "type": "gemini", "content": "I look.", "model": "gemini-3-pro"}
    output = [{"functionResponse": {"id": "c", "name": "ls", "response": {"output": "a.py"}}}]
    call = {"id": "c", "name": "ls", "args": {}, "status": "success", "result": output}
    counted = {**answer, "tokens": {"input": 5, "output": 2, "cached": 0}}
    lines = [about, {"id": "1", "type": "user", "content": "Look"}, answer, counted, {**counted, "toolCalls": [call]}]
    path = site.folder / "session-1.jsonl"
    for line in lines:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        site.round()
        if line is counted:
            site.settle()  # the tool runs longer than the silence limit of a session
    site.settle()

    [run] = site.runs()
    check_run(run)
    assert site.warned == []
    assert (run.title, run.agent_config["model"], run.input_tokens, run.output_tokens) == ("Look", "gemini-3-pro", 5, 2)
    assert list(run.tool_calls.values_list("status", "output")) == [("completed", "a.py")]
    said = [row.content["parts"] for row in run.messages.filter(role="assistant").order_by("position")]
    assert [[part["part_kind"] for part in parts] for parts in said] == [["text", "tool-call"]]
    before = counts(site.project)
    import_path(site.project, path)
    assert counts(site.project) == before
