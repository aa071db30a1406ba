"""Test `agentops mcp` with the SDK's own client, as a coding agent starts it: on the local database and for a remote
site.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.factories import with_key
from tests.support.stage import Stage
from tests.support.suite_fixtures import MakeWeb

pytestmark = pytest.mark.slow
AGENTOPS = str(Path(sys.executable).with_name("agentops"))


def talk(options: list[str], env: dict[str, str], *wanted: tuple[str, dict[str, Any]]) -> tuple[set[str], list[Any]]:
    """Return the names of the tools, and the documents that the calls return."""

    async def connected() -> tuple[set[str], list[Any]]:
        whole = {"PATH": os.environ["PATH"], "DJANGO_SETTINGS_MODULE": "agentops.settings", **env}
        async with Client(StdioServerParameters(command=AGENTOPS, args=["mcp", *options], env=whole)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            results = [await client.call_tool(name, arguments) for name, arguments in wanted]
            return names, [json.loads(result.content[0].text) for result in results]  # type: ignore[union-attr]

    return asyncio.run(connected())


@pytest.fixture
def failed(stage: Stage) -> AgentRun:
    """Create a run that is paused at its step limit."""
    run = stage.run(max_steps=1)
    stage.worker()
    return stage.reaches(run, RunStatus.PAUSED)


def test_mcp_reads_the_local_database(stage: Stage, failed: AgentRun) -> None:
    env, one = stage.databases.env(stage.name, stage.home), {"run_id": str(failed.pk)}
    names, [listed, got, unknown] = talk(
        [], env, ("list_runs", {"status": ["paused"]}), ("get_run", one), ("stop_run", one)
    )
    assert "stop_run" not in names
    assert [row["id"] for row in listed["results"]] == [str(failed.pk)]
    assert got["run"]["status_reason"] == "max_steps"
    assert unknown["code"] == "unknown_tool"

    _, [stopped, again] = talk(["--allow-writes"], env, ("stop_run", one), ("resume_run", one))
    assert stopped["status"] == "stopped"
    assert again["code"] == "run_not_paused"


def test_mcp_reads_a_remote_site(stage: Stage, failed: AgentRun, web_process: MakeWeb, tmp_path: Path) -> None:
    web, one = web_process(), {"run_id": str(failed.pk)}
    key = with_key(failed.project, "read")["Authorization"].removeprefix("Bearer ")
    elsewhere = {"AGENTOPS_HOME": str(tmp_path / "elsewhere"), "AGENTOPS_API_KEY": key}
    _, [got, refused] = talk(["--url", web.url, "--allow-writes"], elsewhere, ("get_run", one), ("resume_run", one))
    assert got["run"]["id"] == str(failed.pk)
    assert refused["code"] == "scope_required"
