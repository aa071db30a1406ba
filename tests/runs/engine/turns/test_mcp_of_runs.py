"""A run whose agent has the tools of an MCP server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic_ai.messages import ToolCallPart

from runs.models import AgentRunToolCall
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from tests.support.engine.fixture_types import MakeScripted
from tests.support.factories import drive
from tests.support.paths import ROOT
from tests.support.processes.scripted_model import Move
from tests.support.run_checks import check

pytestmark = pytest.mark.django_db(transaction=True)
SERVER = str(ROOT / "tests" / "support" / "mcp" / "shop_server.py")


@pytest.fixture
def shop(tmp_path: Path, settings) -> dict[str, object]:
    """The definition of a server; a change counts when the next run begins."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"shop": {"command": sys.executable, "args": [SERVER]}}}))
    settings.AGENTOPS_MCP_SERVERS = str(path)
    return {"path": path}


def play(call: ModelCall) -> Iterable[Move]:
    """The model sees the tools, and calls two of them at once, one of which crashes the server."""
    assert "shop__stock" in [each.name for each in call.tools]
    if call.number == 1:
        yield ToolCallPart("shop__stock", {"item": "pens"}, "a")
    elif call.number == 2:
        yield ToolCallPart("shop__crash", {"marker": call.settings["marker"]}, "b")
    else:
        yield "Done."


@pytest.mark.slow
def test_its_calls_survive_a_crash_of_the_server(scripted: MakeScripted, shop, tmp_path: Path) -> None:
    run = drive(scripted(play, tools=["mcp:shop"], marker=str(tmp_path / "marker")))

    assert run.status == RunStatus.COMPLETED
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number")
    assert [(each.output, each.effect, each.attempts) for each in calls] == [
        ("7 of pens", "read", 1), ("recovered", "read", 2),
    ]  # fmt: skip
    assert not [each for each in children() if "shop_server" in each], "a server is left behind"
    check(run)


def test_it_pauses_while_the_server_is_gone(scripted: MakeScripted, shop) -> None:
    run = scripted(play, tools=["mcp:shop"])
    shop["path"].write_text(json.dumps({"mcpServers": {"shop": {"command": "no-such-program"}}}))

    run = drive(run)

    assert (run.status, run.error_type) == (RunStatus.PAUSED, "unusable_agent")
    assert "the program 'no-such-program' was not found" in run.error_message


def test_it_leaves_no_server_behind_if_another_one_is_gone(scripted: MakeScripted, shop) -> None:
    """One is started to ask for its tools before the other one is found missing."""
    servers = {
        "shop": {"command": sys.executable, "args": [SERVER], "env": {"LISTED": "never"}},
        "gone": {"command": "no-such-program"},
    }
    shop["path"].write_text(json.dumps({"mcpServers": servers}))

    run = drive(scripted(play, tools=["mcp:shop", "mcp:gone"]))

    assert (run.status, run.error_type) == (RunStatus.PAUSED, "unusable_agent")
    assert not [each for each in children() if "shop_server" in each], "a server is left behind"


def children() -> list[str]:
    """The command lines of the processes that this one has started."""
    lines = []
    for task in Path("/proc/self/task").iterdir():
        # Threads and processes may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            for pid in (task / "children").read_text().split():
                lines.append(Path(f"/proc/{pid}/cmdline").read_text())
    return lines
