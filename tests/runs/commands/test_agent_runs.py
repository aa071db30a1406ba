"""Starting and viewing runs: `agent run`, `agent ls`, `agent show`."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from agentops.accounts.models import Project
from runs.actions import agent_definitions
from runs.fixtures import fixture_files
from runs.lifecycle import creation, inbox, transitions
from runs.management.agent import start_commands
from runs.models import Agent, AgentRun
from runs.statuses import RunStatus
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from timeline import log

MakeRun = Callable[..., AgentRun]
Command = Callable[..., str]

ANSWER = {"text": "Hello", "usage": {}, "durationMs": 1}
ASKS = {
    "kind": "response",
    "parts": [{"part_kind": "tool-call", "tool_name": "look", "args": {"at": 1}, "tool_call_id": "1"}],
}


def only_run() -> AgentRun:
    return AgentRun.objects.get()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def fixture_agent(project: Project, tmp_path: Path, settings: Any) -> Callable[..., Agent]:
    """Create an agent that plays these calls: `fixture_agent([call, …])`."""
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]

    def make(calls: list[dict[str, Any]], slug: str = "own") -> Agent:
        (tmp_path / f"{tmp_path.name}-{slug}.json").write_text(json.dumps({"calls": calls}))
        definition = {
            "agent_id": slug,
            "provider": "fixture",
            "model": f"{tmp_path.name}-{slug}",
            "tools": ["recorded"],
        }
        return agent_definitions.apply(project, definition, by="system")[0]

    yield make
    fixture_files.load_named.cache_clear()


# --- agent run --------------------------------------------------------------------------------------------------
def test_run_prints_only_the_id(agent: Agent, command: Command) -> None:
    printed = command("agent", "run", "player", "--project", "alpha", "--prompt", "Say hello")

    run = only_run()
    assert printed == f"{run.pk}\n"
    assert (run.status, run.prompt, run.title, run.max_steps) == ("queued", "Say hello", "Say hello", 50)
    assert re.fullmatch(r"cli:\S+", log.read(run.pk)[0].payload["by"])


def test_run_accepts_all_options(agent: Agent, command: Command) -> None:
    row = json.loads(
        command(
            *(
                "agent",
                "run",
                "player",
                "--project",
                "alpha",
                "--prompt",
                "Hi",
                "--max-steps",
                "3",
                "--title",
                " T\x1b ",
            ),
            *("--label", "nightly", "--label", "b", "--label", "nightly", "--json"),
        )
    )

    run = only_run()
    assert (row["id"], row["agent_id"], row["project"]) == (str(run.pk), "player", "alpha")
    assert (row["title"], row["labels"], row["status"]) == ("T\ufffd", ["nightly", "b"], "queued")
    assert (row["step_count"], row["step_limit"], row["duration"]) == (0, 3, None)


def test_run_without_a_prompt_uses_the_prompt_of_the_recording(agent: Agent, command: Command) -> None:
    command("agent", "run", "player", "--project", "alpha")

    assert only_run().prompt == fixture_files.load_named("claude-code-5c").answers[0].input.prompt


def test_run_without_a_prompt_is_refused_if_the_recording_has_none(
    project: Project, fixture_agent: Any, refused: Any
) -> None:
    fixture_agent([{"input": {}, "output": ANSWER, "events": []}])

    assert refused("agent", "run", "own", "--project", "alpha")[0] == 2
    assert not AgentRun.objects.exists()


def test_the_prompt_can_come_from_a_file_or_standard_input(
    agent: Agent, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt").write_text("Zeile eins\nüber zwei\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    command("agent", "run", "player", "--project", "alpha", "--prompt-file", str(tmp_path / "prompt"))
    command("agent", "run", "player", "--project", "alpha", "--prompt-file", "-")

    assert set(AgentRun.objects.values_list("prompt", flat=True)) == {"Zeile eins\nüber zwei\n", "from a pipe"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nobody", "--prompt", "x"], 3),
        (["No\udcffbody", "--prompt", "x"], 3),
        (["player", "--prompt", " \n"], 7),
        (["player", "--prompt", "x", "--max-steps", "0"], 7),
        (["player", "--prompt", "x", "--max-steps", "-1"], 7),
        (["player", "--prompt", "x", "--max-steps", "2147483648"], 7),
        (["player", "--prompt-file", "/no/such/file"], 6),
        (["player", "--prompt-file", "/dev/zero"], 6),
    ],
)
def test_invalid_runs_are_refused(agent: Agent, refused: Any, words: list[str], code: int) -> None:
    assert refused("agent", "run", *words, "--project", "alpha")[0] == code
    assert not AgentRun.objects.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--max-steps", "1_0"],
        ["--max-steps", "50.5"],
        ["--max-steps", "１０"],
        ["--title", "x" * 201],
        ["--label", " "],
        ["--label", "x" * 65],
        ["--wait", "-1"],
        ["--wait", "nan"],
        ["--prompt-file", "x"],
    ],
)
def test_invalid_options_are_refused(agent: Agent, command: Command, words: list[str]) -> None:
    with pytest.raises(CommandError, match="argument"):
        command("agent", "run", "player", "--project", "alpha", "--prompt", "x", *words)
    assert not AgentRun.objects.exists()


def test_invalid_characters_of_a_prompt_are_replaced(
    agent: Agent, command: Command, refused: Any, tmp_path: Path
) -> None:
    """Row 78: characters that no database can store are replaced, for every source of the prompt."""
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "long").write_text("x" * 200_001)
    command("agent", "run", "player", "--project", "alpha", "--prompt", "caf\udce9 {{7*7}}")
    command("agent", "run", "player", "--project", "alpha", "--prompt-file", str(tmp_path / "nul"))

    assert set(AgentRun.objects.values_list("prompt", flat=True)) == {"caf\ufffd {{7*7}}", "a\ufffdb"}
    assert refused("agent", "run", "player", "--project", "alpha", "--prompt-file", str(tmp_path / "long"))[0] == 7


# --- agent run --wait -------------------------------------------------------------------------------------------
@pytest.fixture
def sweeping(transactional_db: None) -> Any:
    """Run a worker in this process that drives queued runs."""
    worker = Worker()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            advance_ready(worker)
        connections.close_all()

    thread = threading.Thread(target=look)
    thread.start()
    yield worker
    ended.set()
    thread.join()
    worker.close(5)


@pytest.fixture
def own(sweeping: Worker, fixture_agent: Any) -> Any:
    return fixture_agent


def call(**more: Any) -> dict[str, Any]:
    return {"input": {}, "output": ANSWER, "events": [], **more}


def asking() -> dict[str, Any]:
    return call(output={**ANSWER, "text": "", "message": ASKS}, tools={"1": {"output": "seen"}})


def test_wait_follows_the_run_to_its_end(own: Any, command: Command) -> None:
    own([call(input={"prompt": "Hi"})])
    printed = command("agent", "run", "own", "--project", "alpha", "--wait")

    assert printed == f"{only_run().pk}\ncompleted\n"


def test_wait_reports_a_pause(own: Any, command: Command) -> None:
    own([asking(), call()])
    out = io.StringIO()
    with pytest.raises(CommandError, match=r"the run is paused \(step limit reached\)") as ended:
        call_command(
            *("agent", "run", "own", "--project", "alpha", "--prompt", "x", "--max-steps", "1", "--wait", "20"),
            stdout=out,
        )

    assert ended.value.returncode == 1
    assert out.getvalue() == f"{only_run().pk}\npaused (step limit reached)\n"


def test_a_run_pauses_when_its_recording_ends(own: Any, refused: Any) -> None:
    """Row 106: the run makes more model calls than the fixture has."""
    own([asking()])
    code, line = refused("agent", "run", "own", "--project", "alpha", "--prompt", "x", "--wait", "20")

    assert (code, "the run is paused (recording ended)" in line) == (1, True)
    run = only_run()
    assert (run.status, run.status_reason, run.error_type) == ("paused", "fixture_exhausted", "fixture_exhausted")
    assert run.error_message == "No fixture for own call 1"


def test_wait_times_out_and_does_not_affect_the_run(agent: Agent, refused: Any) -> None:
    words = ("agent", "run", "player", "--project", "alpha", "--wait", "0.3", "--json")

    assert refused(*words) == (1, "the run is queued")
    assert only_run().status == "queued"


def test_ctrl_c_only_ends_the_wait(agent: Agent, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start_commands.time, "sleep", interrupt)
    with pytest.raises(SystemExit) as ended:
        command("agent", "run", "player", "--project", "alpha", "--wait")

    assert (ended.value.code, only_run().status) == (130, "queued")


# --- agent ls ---------------------------------------------------------------------------------------------------
def test_ls_lists_the_newest_run_first(make_run: MakeRun, command: Command) -> None:
    old = make_run(RunStatus.PAUSED, "Do this\nand that")
    new = make_run()

    lines = [line.split("\t") for line in command("agent", "ls").splitlines()]
    assert lines == [
        [str(new.pk), "alpha", "player", "queued", "-", "0/50", f"{new.created_at:%Y-%m-%dT%H:%MZ}", "Say hello"],
        [str(old.pk), "alpha", "player", "paused", "operator", "0/50", f"{old.created_at:%Y-%m-%dT%H:%MZ}", "Do this"],
    ]


def test_ls_filters(make_run: MakeRun, command: Command, refused: Any) -> None:
    paused, stopped, queued = make_run(RunStatus.PAUSED), make_run(RunStatus.STOPPED), make_run()
    other = create_project("beta", "Beta", actor=SYSTEM)
    agent, _ = agent_definitions.apply(
        other, {"agent_id": "x", "provider": "fixture", "model": "claude-code-5c"}, by="system"
    )
    theirs = creation.create(other, agent, "Hi", by="test")

    def listed(*words: str) -> list[str]:
        return [row["id"] for row in json.loads(command("agent", "ls", "--json", *words))]

    assert listed() == [str(run.pk) for run in (theirs, queued, stopped, paused)]
    assert listed("--project", "alpha") == [str(run.pk) for run in (queued, stopped, paused)]
    assert listed("--project", "beta", "--status", "paused") == []
    assert listed("--status", "paused", "--status", "stopped") == [str(stopped.pk), str(paused.pk)]
    assert listed("--limit", "1") == [str(theirs.pk)]
    assert refused("agent", "ls", "--project", "gamma")[0] == 3
    for words in (["--status", "bogus"], ["--limit", "0"], ["--limit", "1e3"], ["--limit", "1001"]):
        with pytest.raises(CommandError, match="argument"):
            command("agent", "ls", *words)


def test_ls_shows_the_reason_why_a_run_is_queued(make_run: MakeRun, command: Command) -> None:
    running, waiting = make_run(), make_run()
    Agent.objects.update(max_running=1)
    assert transitions.claim(running.pk, "worker")

    rows = {row["id"]: row["waiting_for"] for row in json.loads(command("agent", "ls", "--json"))}

    assert rows == {str(waiting.pk): "agent", str(running.pk): None}


def test_ls_needs_a_constant_number_of_queries(
    make_run: MakeRun, command: Command, django_assert_num_queries: Any
) -> None:
    for _ in range(5):
        make_run()

    with django_assert_num_queries(1):
        command("agent", "ls")
    # One more says why runs are queued.
    with django_assert_num_queries(2):
        command("agent", "ls", "--json")


def test_nothing_that_was_written_steers_the_terminal(make_run: MakeRun) -> None:
    make_run(prompt="\x1b]0;pwned\x07 clear\x9b2J " + "x" * 100)
    out = Terminal()
    call_command("run", "ls", stdout=out)
    header, row = out.getvalue().splitlines()

    assert header.startswith("ID")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", row)
    assert row.endswith("…")


# --- agent show -------------------------------------------------------------------------------------------------
def test_show_describes_a_new_run(make_run: MakeRun, command: Command) -> None:
    run = make_run(labels=["a", "b"])
    facts = dict(line.split("\t") for line in command("agent", "show", str(run.pk)).splitlines())

    assert (facts["run"], facts["status"], facts["steps"], facts["labels"]) == (str(run.pk), "queued", "0/50", "a, b")
    assert (facts["agent"], "cost" in facts) == ("player version 1, fixture claude-code-5c", False)
    assert facts["tool calls"].startswith("0")
    assert facts["message 1"] == "user: Say hello"
    assert re.match(r"2 message.added \S+Z ", facts["last event"])


def test_show_describes_a_finished_run(agent: Agent, command: Command, transactional_db: None) -> None:
    command("agent", "run", "player", "--project", "alpha")
    run = only_run()
    worker = Worker()
    worker.drive(run.pk)
    worker.close(5)
    facts = json.loads(command("agent", "show", str(run.pk), "--json"))
    lines = command("agent", "show", str(run.pk))

    assert (facts["status"], facts["step_count"], facts["tool_calls"]) == ("completed", 5, {"completed": 8, "error": 2})
    assert facts["last_event"]["type"] == "run.completed"
    assert [row["role"] for row in facts["messages"]][-1] == "assistant"
    assert facts["tokens"]["output"] > 0
    assert facts["duration"] >= 0
    assert "\ntool calls\t10: 8 completed, 2 error\n" in lines
    assert facts["result"][:40].split("\n")[0] in lines


def test_show_lists_the_lineage(make_run: MakeRun, command: Command) -> None:
    first = make_run(RunStatus.PAUSED)
    second = UUID(command("agent", "resume", str(first.pk)).strip())

    old = json.loads(command("agent", "show", str(first.pk), "--json"))
    new = json.loads(command("agent", "show", str(second), "--json"))
    assert (old["status"], old["lineage"]) == ("resumed", {"resumed_as": str(second)})
    assert new["lineage"] == {"root_run_id": str(first.pk), "resumed_from": str(first.pk)}


def test_show_and_ls_redact_secrets(make_run: MakeRun, command: Command) -> None:
    secret = "ghp_" + "a1B2" * 9
    run = make_run(RunStatus.PAUSED, f"Use {secret}")
    inbox.send(run.pk, f"and {secret}", by="test")

    for words in (["show", str(run.pk)], ["show", str(run.pk), "--json"], ["ls"], ["ls", "--json"]):
        printed = command("agent", *words)
        assert secret not in printed
        assert "[REDACTED:" in printed


def test_show_aligns_columns_on_a_terminal(make_run: MakeRun) -> None:
    run = make_run()
    out = Terminal()
    call_command("agent", "show", str(run.pk), stdout=out)

    assert out.getvalue().splitlines()[0] == f"run         {run.pk}"


def test_the_operator_is_determined_by_the_user_id(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentops.accounts.command_base import operator

    monkeypatch.setenv("USER", "mallory")
    monkeypatch.setenv("LOGNAME", "mallory")
    assert operator() != "cli:mallory"
    monkeypatch.setattr(os, "getuid", lambda: 4_123_456)
    assert operator() == "cli:4123456"
