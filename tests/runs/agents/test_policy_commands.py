"""Gates: the verdict of a command or tool, and that no process or file remains."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from agentops.base.redaction.partial_texts import mask
from runs.agents import policy_commands
from runs.agents.policy_commands import GateInput, GateVerdict
from runs.tools.base import ToolContext
from tests.support.timing import process_ends


class Enough(Exception):
    """Raised by the caller to stop waiting for the gate."""


@pytest.fixture(autouse=True)
def commands(settings: Settings, tmp_path: Path) -> None:
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    settings.AGENTOPS_GATE_COMMANDS = ["true", "false", "cat", "printf", sys.executable, "/no/such/program"]


def context(**settings: Any) -> ToolContext:
    return ToolContext(
        run_id="the-run",
        call_id="gate",
        tool_call_pk="gate",
        idempotency_key="gate",
        attempt=0,
        epoch=1,
        model_call=3,
        settings=settings,
        cancelled=lambda: False,
        mask=mask,
    )


def ask(run: str, *, answer: str = "", watch: Callable[[], None] = lambda: None, **settings: Any) -> GateVerdict:
    return policy_commands.execute(run, GateInput(context(**settings), "on_idle", answer), watch)


def python(code: str) -> str:
    return f'{sys.executable} -c "{code}"'


def test_exit_0_passes() -> None:
    assert ask("true") == GateVerdict(True, "exit 0")
    assert ask("false") == GateVerdict(False, "exit 1")
    assert ask(python("raise SystemExit(7)")) == GateVerdict(False, "exit 7")


def test_a_signal_is_a_failure() -> None:
    assert ask(python("import os; os.kill(os.getpid(), 9)")) == GateVerdict(False, "ended by signal 9")


@pytest.mark.parametrize("text", ["$(id)", "`id`", "a; false", "a && false", "a\nb", "*", "🙂", "> /tmp/x"])
def test_no_shell_interprets_the_command(text: str) -> None:
    """Only quotes and white space have a meaning in a command."""
    assert ask(f"printf %s '{text}'") == GateVerdict(True, "exit 0", text)


def test_the_command_gets_the_answer_as_input() -> None:
    assert ask("cat", answer="It is 42.").output == "It is 42."
    assert ask("true", answer="x" * 1_000_000).passed  # a command that does not read its input is not waited for


def test_the_command_gets_no_environment_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "not for you")
    found = ask(python("import os; print(sorted(os.environ))")).output

    assert "SECRET" not in found
    assert "DATABASE_URL" not in found
    assert "AGENTOPS_RUN_ID" in found


def test_the_command_runs_in_the_agents_root(tmp_path: Path) -> None:
    code = python("import os; print(os.getcwd())")

    assert ask(code, root=str(tmp_path)).output == str(tmp_path)
    elsewhere = ask(code).output
    assert elsewhere not in (str(tmp_path), str(Path.cwd()))
    assert not Path(elsewhere).exists()


def test_the_end_of_long_output_is_kept() -> None:
    verdict = ask(python("print('a' * 300000); print('the last line'); raise SystemExit(1)"))

    assert verdict.output.startswith("…a")
    assert verdict.output.endswith("a\nthe last line")
    assert len(verdict.output) <= policy_commands.MAX_OUTPUT_BYTES + 1


def test_undecodable_bytes_are_kept_readable() -> None:
    assert ask(python("import sys; sys.stdout.buffer.write(bytes([65, 255, 66]))")).output == "A\ufffdB"


def test_a_timeout_ends_the_command_and_its_children(settings: Settings, tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = (
        f"import subprocess; c = subprocess.Popen(['sleep', '600']); open('{child}', 'w').write(str(c.pid)); c.wait()"
    )

    for limit_s in (1.0, 10.0, 60.0):  # retry with a longer limit if a busy machine was too slow
        settings.AGENTOPS_GATE_TIMEOUT_S = limit_s
        verdict = ask(python(code))
        assert (verdict.passed, verdict.reason) == (False, f"no answer within {limit_s:g} s")
        if child.exists() and child.read_text():
            break

    process_ends(int(child.read_text()))


def test_children_of_a_finished_command_are_ended(tmp_path: Path) -> None:
    """The command passed, but its child still holds its output open."""
    child = tmp_path / "child"
    code = f"import subprocess; c = subprocess.Popen(['sleep', '600']); open('{child}', 'w').write(str(c.pid))"
    began = time.monotonic()

    assert ask(python(code)).passed

    assert time.monotonic() - began < 60
    process_ends(int(child.read_text()))


def test_a_command_is_ended_when_the_caller_stops_waiting(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"import os, time; open('{started}', 'w').write(str(os.getpid())); time.sleep(600)"

    def watch() -> None:
        if started.exists() and started.read_text():
            raise Enough

    with pytest.raises(Enough):
        ask(python(code), watch=watch)
    process_ends(int(started.read_text()))


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("rm -rf /", "refused: 'rm' is neither a tool"),
        ("/usr/bin/true", "refused: '/usr/bin/true' is neither a tool"),
        ("/no/such/program", "the program '/no/such/program' was not found"),
        ("ask_user", "refused: the tool 'ask_user' waits"),
    ],
)
def test_an_invalid_gate_does_not_pass(run: str, why: str) -> None:
    """The settings of the site may have changed since the agent was applied."""
    verdict = ask(run)

    assert not verdict.passed
    assert why in verdict.reason


def test_a_tool_decides(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("yes")

    assert ask('read_file {"path": "ready"}', root=str(tmp_path)) == GateVerdict(True, "the tool succeeded", "yes")
    assert not ask('read_file {"path": "gone"}', root=str(tmp_path)).passed
    assert ask("read_file", root=str(tmp_path)).reason == "the tool returned an error"
    assert ask('http_fetch {"url": "https://example.org"}').reason == "the tool failed"
