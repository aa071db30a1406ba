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
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.machine import ROOT
from tests.support.run_checks import check
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)
SERVER = str(ROOT / "tests" / "support" / "programs" / "shop_server.py")


@pytest.fixture
def shop(tmp_path: Path, settings) -> dict[str, object]:
    """Configure a server; a change of the file applies to the next run."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"shop": {"command": sys.executable, "args": [SERVER]}}}))
    settings.AGENTOPS_MCP_SERVERS = str(path)
    return {"path": path}


def play(call: ModelCall) -> Iterable[Move]:
    """Check the tools and call two of them; the second call crashes the server."""
    assert "shop__stock" in [each.name for each in call.tools]
    if call.number == 1:
        yield ToolCallPart("shop__stock", {"item": "pens"}, "a")
    elif call.number == 2:
        yield ToolCallPart("shop__crash", {"marker": call.settings["marker"]}, "b")
    else:
        yield "Done."


@pytest.mark.slow
def test_calls_survive_a_crash_of_the_server(scripted: MakeScripted, shop, tmp_path: Path) -> None:
    run = drive(scripted(play, tools=["mcp:shop"], marker=str(tmp_path / "marker")))

    assert run.status == RunStatus.COMPLETED
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number")
    assert [(each.output, each.effect, each.attempts) for each in calls] == [
        ("7 of pens", "read", 1),
        ("recovered", "read", 2),
    ]
    assert not [each for each in children() if "shop_server" in each], "a server is left behind"
    check(run)


def test_a_run_pauses_if_its_server_is_missing(scripted: MakeScripted, shop) -> None:
    run = scripted(play, tools=["mcp:shop"])
    shop["path"].write_text(json.dumps({"mcpServers": {"shop": {"command": "no-such-program"}}}))

    run = drive(run)

    assert (run.status, run.error_type) == (RunStatus.PAUSED, "unusable_agent")
    assert "the program 'no-such-program' was not found" in run.error_message


def test_no_server_is_left_running_if_another_server_is_missing(scripted: MakeScripted, shop) -> None:
    """The first server is started to list its tools before the second turns out to be missing."""
    servers = {
        "shop": {"command": sys.executable, "args": [SERVER], "env": {"LISTED": "never"}},
        "gone": {"command": "no-such-program"},
    }
    shop["path"].write_text(json.dumps({"mcpServers": servers}))

    run = drive(scripted(play, tools=["mcp:shop", "mcp:gone"]))

    assert (run.status, run.error_type) == (RunStatus.PAUSED, "unusable_agent")
    assert not [each for each in children() if "shop_server" in each], "a server is left behind"


def children() -> list[str]:
    """Return the command lines of the child processes of this process."""
    lines = []
    for task in Path("/proc/self/task").iterdir():
        # Threads and processes may end during the loop.
        with suppress(FileNotFoundError, ProcessLookupError):
            for pid in (task / "children").read_text().split():
                lines.append(Path(f"/proc/{pid}/cmdline").read_text())
    return lines
