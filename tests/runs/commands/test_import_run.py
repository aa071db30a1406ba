"""`agentops import_run`: output, stored rows and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from agentops.accounts.models import Project
from runs.external.import_runs import import_file
from runs.external.importers import formats
from runs.external.importers.base import ImportFile
from runs.models import AgentRun
from tests.support.command_line import MANAGE, Command
from tests.support.factories import make_project
from tests.support.timing import eventually

Refused = Callable[..., tuple[int, str]]


def line(type_: str, uuid: str, content: Any, session: str = "s1") -> str:
    message = {"role": type_, "content": content, "usage": {"input_tokens": 3, "output_tokens": 2}}
    return json.dumps({"type": type_, "uuid": uuid, "sessionId": session, "message": message}) + "\n"


CALL = [{"type": "tool_use", "id": "c1", "name": "Read", "input": {}}]


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()")
        return bool(cursor.fetchone()[0])


@pytest.fixture
def session(tmp_path: Path) -> Path:
    path = tmp_path / "one.jsonl"
    path.write_text(line("user", "u1", "Hello") + line("assistant", "a1", CALL))
    return path


def test_the_output_has_a_line_for_each_run_with_its_state(command: Command, project: Project, session: Path) -> None:
    Project.objects.update(retention_days=None)
    first = command("import_run", str(session), "--project", "alpha").split("\t")
    again = command("import_run", str(session), "--project", "alpha").split("\t")
    with session.open("a") as file:
        file.write(line("user", "u2", [{"type": "tool_result", "tool_use_id": "c1", "content": "text"}]))
    longer = json.loads(command("import_run", str(session), "--project", "alpha", "--json"))

    run = AgentRun.objects.get()
    assert [cell.strip() for cell in first] == [str(run.pk), "claude-code", "2", "1", "5", "new", "forever"]
    assert [cell.strip() for cell in again[-2:]] == ["unchanged", "forever"]
    assert longer == [
        {
            "run": str(run.pk),
            "format": "claude-code",
            "messages": 3,
            "tool_calls": 1,
            "tokens": 5,
            "state": "continued",
            "kept_until": "forever",
            "left_out": 0,
        }
    ]
    assert (run.source, run.status) == ("import", "waiting")


def test_facts_that_an_imported_run_lacks_are_left_out(command: Command, project: Project, session: Path) -> None:
    """The version of an agent, the provider, and the step limit."""
    command("import_run", str(session), "--project", "alpha")
    run = AgentRun.objects.get()

    facts = dict(row.split("\t") for row in command("agent", "show", str(run.pk)).splitlines())
    cells = command("agent", "ls").split("\t")

    assert (facts["agent"], facts["steps"], cells[5]) == ("claude-code", str(run.step_count), str(run.step_count))
    assert json.loads(command("agent", "show", str(run.pk), "--json"))["step_limit"] is None


def test_a_dry_run_stores_nothing(command: Command, project: Project, session: Path) -> None:
    output = command("import_run", str(session), "--project", "alpha", "--dry-run")

    assert output.split("\t")[-2] == "new"
    assert not AgentRun.objects.exists()


def test_damaged_lines_are_reported_or_the_file_is_refused(
    command: Command, project: Project, session: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    session.write_text(session.read_text() + '{"type": "us\n' + line("user", "u2", "Go on") + '{"type":')

    code, text = refused("import_run", str(session), "--project", "alpha", "--strict")
    assert (code, text.partition(": ")[0], AgentRun.objects.count()) == (7, "one.jsonl:3", 0)

    capsys.readouterr()
    [row] = json.loads(command("import_run", str(session), "--project", "alpha", "--json"))
    assert (row["messages"], row["state"], row["left_out"]) == (3, "new", 1)
    assert capsys.readouterr().err.splitlines() == [
        "agentops: one.jsonl: left out line 3: Unterminated string starting at: column 10",
        "agentops: one.jsonl: line 5 is not complete yet: it is imported with a longer version of the file",
    ]


def test_each_file_is_imported_separately(
    project: Project, session: Path, tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"type": "user", "sessionId": "s2", "message": 7}\n42\n')

    code, last = refused("import_run", str(bad), str(session), str(tmp_path / "none"), "--project", "alpha")

    assert (code, last) == (7, f"{tmp_path / 'none'}: not a file that can be read")
    assert (
        "bad.jsonl: no user or assistant lines; line 1: user line without a message object" in capsys.readouterr().err
    )
    assert [run.external_id for run in AgentRun.objects.all()] == ["claude-code:s1"]


def test_the_exit_code_names_the_kind_of_error(
    project: Project, session: Path, tmp_path: Path, refused: Refused
) -> None:
    unknown = tmp_path / "notes.txt"
    unknown.write_text("Hello")

    (tmp_path / "empty").mkdir()
    assert refused("import_run", str(tmp_path / "empty"), "--project", "alpha")[0] == 6
    assert refused("import_run", str(unknown), "--project", "alpha")[0] == 7
    assert refused("import_run", str(session), "--project", "nowhere")[0] == 3
    code, text = refused("import_run", str(session), "--project", "alpha", "--format", "tapes")
    assert code == 2
    assert text.startswith("no format is called 'tapes': known are claude-code, ")
    assert not AgentRun.objects.exists()


def test_a_format_that_does_not_match_is_refused(project: Project, session: Path, refused: Refused) -> None:
    code, text = refused("import_run", str(session), "--project", "alpha", "--format", "codex")

    assert code == 7
    reason = "line 1: not a line of a rollout: it has no type, or no payload object and 1 more lines"
    assert text == f"one.jsonl: no session_meta line with an id; {reason}"


def test_an_import_into_a_run_that_is_being_deleted_is_refused(
    command: Command, project: Project, session: Path, refused: Refused
) -> None:
    command("import_run", str(session), "--project", "alpha")
    AgentRun.objects.update(removed_at=timezone.now())

    code, text = refused("import_run", str(session), "--project", "alpha")

    assert code == 7
    assert text == "one.jsonl: the run 'claude-code:s1' is being deleted by retention: import it again later"


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_two_concurrent_imports_of_a_session_create_one_run(
    command: Command, transactional_db: None, session: Path
) -> None:
    project, file = make_project("alpha"), ImportFile.open(session)

    def second() -> str:
        try:
            return command("import_run", str(session), "--project", "alpha")
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        import_file(project, file, formats.find(file), by="test")
        output = pool.submit(second)
        eventually(somebody_waits_for_a_lock, why="the second import does not wait", within_s=20)

    assert output.result().split("\t")[-2].strip() == "unchanged"
    assert AgentRun.objects.get().external_id == "claude-code:s1"


def test_import_is_an_alias() -> None:
    done = subprocess.run(
        [*MANAGE, "import", "--help"], capture_output=True, text=True, timeout=60, check=True, env=os.environ
    )

    assert "--dry-run" in done.stdout
