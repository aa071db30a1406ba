"""The changes of a run: on its page, by the API, by the command, and in its report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Project, Role
from runs.exports.run_report import report_portions
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from runs.queries import run_changes
from runs.queries.run_changes import ChangeScope, changes_of
from tests.support.factories import make_person, make_project
from tests.support.secret_samples import TOKENS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
BEFORE = "".join(f"line {number}\n" for number in range(1, 61))
READ = {"file_path": "/work/a.py"}


def edit(old: str, new: str, path: str = "/work/a.py") -> dict[str, Any]:
    return {"file_path": path, "old_string": old, "new_string": new}


@pytest.fixture
def project() -> Project:
    return make_project()


@pytest.fixture
def run(project: Project) -> AgentRun:
    """Return a run that read and edited a file, failed once, wrote a file, and got a second message."""
    sender = Sender(project, "key:test")
    calls: list[tuple[str, dict[str, Any], str, str]] = [
        ("Read", READ, "completed", numbered(BEFORE)),
        ("Edit", edit("line 30\n", "line thirty\n"), "completed", "The file has been updated."),
        ("Edit", edit("missing", "x"), "error", "String to replace not found"),
        ("Write", {"file_path": "/work/<b>.txt", "content": "<script>\u202e\n"}, "completed", "File created"),
    ]
    events: list[dict[str, Any]] = [{"type": "run.started", "payload": {"agent": "coder", "prompt": "Do it."}}]
    for number, call in enumerate(calls):
        events += call_events(f"c{number}", *call)
    events.append({"type": "message.added", "payload": {"role": "user", "content": "And this."}})
    events += call_events("c9", "Edit", edit("line 50\n", "line fifty\n"), "completed", "The file has been updated.")
    events += [{"type": "file.changed", "payload": {"path": "c.bin", "change": "added", "additions": 2}}]
    events += [{"type": "git.commit", "payload": {"sha": "ab12", "subject": "Mend it", "branch": "main"}}]
    for result in record(sender, [{"runId": "r1", **event} for event in events]):
        assert result.error is None, result.error
    return AgentRun.objects.select_related("project", "log").get(project=project, external_id="r1")


def call_events(call_id: str, tool: str, arguments: dict[str, Any], status: str, output: str) -> list[dict[str, Any]]:
    start = {"callId": call_id, "toolName": tool, "arguments": arguments}
    end = {"callId": call_id, "status": status, "output": output}
    return [{"type": "tool.start", "payload": start}, {"type": "tool.end", "payload": end}]


def numbered(text: str) -> str:
    return "\n".join(f"{number:6}→{line}" for number, line in enumerate(text.split("\n"), start=1))


def page_of(run: AgentRun, query: str = "") -> str:
    client = Client()
    client.force_login(make_person(run.project, Role.OPERATOR))
    answer = client.get(f"/runs/{run.pk}/changes{query}")
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


@pytest.mark.every_database
def test_only_calls_that_took_effect_count(run: AgentRun) -> None:
    listing = changes_of(run)

    whole = {change.path: (change.status.value, change.is_whole, change.additions) for change in listing.files}
    assert whole == {
        "/work/<b>.txt": ("added", True, 1),
        "/work/a.py": ("modified", True, 2),
        "c.bin": ("added", False, 2),
    }
    assert listing.without_effect == 1


def test_the_number_of_queries_does_not_depend_on_the_run(run: AgentRun) -> None:
    with CaptureQueriesContext(connection) as queries:
        changes_of(run)
    assert len(queries) == 5


def test_a_run_with_more_edits_than_are_read_says_so(run: AgentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_changes, "MAX_EDITS", 1)

    assert changes_of(run).is_cut
    assert "This run has more or longer edits than are read." in page_of(run)


def test_calls_beyond_the_budget_are_not_kept_in_memory(run: AgentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_changes, "MAX_CHARACTERS", 80)
    changes = changes_of(run)
    assert changes.is_cut
    assert [change.path for change in changes.files if change.path != "c.bin"] == ["/work/a.py"]


@pytest.mark.every_database
def test_a_scope_has_the_changes_since_the_last_message_or_of_a_step(run: AgentRun) -> None:
    [change, *_] = [one for one in changes_of(run, ChangeScope(since_last_message=True)).files if one.is_whole]
    assert (change.path, change.additions, change.is_whole) == ("/work/a.py", 1, True)
    [step] = change.steps
    assert [one.path for one in changes_of(run, ChangeScope(step=step)).files if one.is_whole] == ["/work/a.py"]
    assert [one.path for one in changes_of(run, ChangeScope(step=1)).files] == []


def test_the_page_shows_diffs_escaped_and_with_visible_control_characters(run: AgentRun) -> None:
    page = page_of(run)
    assert "<script>\u202e" not in page
    assert "&lt;" in page
    assert "U+202E" in page
    assert "3 files</strong>" in page
    assert "Copy patch" in page
    assert "1 edit failed or was denied" in page
    assert "Mend it" in page
    assert "unchanged lines" in page
    for query in ("?view=split", "?since=last_message", "?step=2", "?after=c.bin"):
        page_of(run, query)


@pytest.mark.parametrize("query", ["?view=x", "?since=x", "?step=x", "?since=last_message&step=2"])
def test_the_page_refuses_other_parameters(run: AgentRun, query: str) -> None:
    client = Client()
    client.force_login(make_person(run.project, Role.OPERATOR))
    assert client.get(f"/runs/{run.pk}/changes{query}").status_code == 400


def test_the_patch_names_the_files_that_it_lacks(run: AgentRun) -> None:
    client = Client()
    client.force_login(make_person(run.project, Role.OPERATOR))
    answer = client.get(f"/runs/{run.pk}/changes.patch")
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
    assert answer.headers["Content-Type"] == "text/x-diff; charset=utf-8"
    assert text.startswith("# Not in this patch: c.bin. ")
    assert "--- a/work/a.py\n+++ b/work/a.py\n@@ -27,7 +27,7 @@" in text


def test_the_api_lists_files_by_cursor(run: AgentRun) -> None:
    client = Client()
    client.force_login(make_person(run.project, Role.OPERATOR))
    base = f"/api/projects/{run.project.slug}/agent-runs/{run.pk}"
    url, paths = f"{base}/changes?limit=2", []
    while url:
        answer = client.get(url).json()
        paths += [each["path"] for each in answer["results"]]
        assert answer["totals"]["files"] == 3
        url = answer["next"]
    assert paths == ["/work/<b>.txt", "/work/a.py", "c.bin"]
    assert client.get(f"{base}/changes?step=1&since=last_message").status_code == 400
    assert client.get(f"{base}/changes.patch").headers["Content-Type"].startswith("text/x-diff")


def test_the_command_prints_diffs_and_a_patch(run: AgentRun, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*options: str) -> str:
        call_command("run", "diff", str(run.pk), *options)
        return capsys.readouterr().out

    assert "+line thirty\n" in printed()
    assert "\x1b" not in printed()
    assert printed("--stat").splitlines()[1].split("\t")[:3] == ["modified", "/work/a.py", "+2 -2"]
    assert printed("--patch").startswith("# Not in this patch: c.bin. ")
    assert [each["path"] for each in json.loads(printed("--json", "--since-last-message"))] == ["/work/a.py", "c.bin"]


def test_the_report_has_the_changes_with_secrets_masked(run: AgentRun) -> None:
    secret = TOKENS["anthropic"]()
    events = call_events("c10", "Write", {"file_path": "/work/key", "content": secret}, "completed", "File created")
    record(Sender(run.project, "key:test"), [{"runId": "r1", **event} for event in events])
    run.refresh_from_db()

    text = "".join(report_portions(run, with_notes=False))
    assert "<h2>Changes</h2>" in text
    assert "line thirty" in text
    assert secret not in text


def test_a_run_without_edits_says_what_would_appear(project: Project) -> None:
    record(Sender(project, "key:test"), [{"runId": "r2", "type": "run.started", "payload": {"agent": "a"}}])
    page = page_of(AgentRun.objects.get(project=project, external_id="r2"))
    assert "No file changed by the tools of this run." in page
    assert "Copy patch" not in page
