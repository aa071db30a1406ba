"""AG-UI's own npm client drives a durable run of a worker, and finds the events in order."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.accounts import with_key
from tests.support.plugins.web_fixtures import CLIENTS, MakeWeb
from tests.support.processes.stage import Stage

pytestmark = pytest.mark.slow


def test_the_npm_client_talks_to_an_agent(stage: Stage, web_process: MakeWeb, node_modules: Path) -> None:
    first = stage.run([["ledger_read"], ["ask_user"]], chunks=2)
    stage.worker()
    web = web_process(settings_module="tests.support.processes.scripted_settings")
    stage.reaches(first, RunStatus.FAILED, RunStatus.COMPLETED, RunStatus.WAITING)
    agent = first.agent
    assert agent is not None
    agent.tools = [*agent.tools, "ask_user"]
    agent.save()

    url = f"{web.url}/api/projects/{agent.project.slug}/agents/{agent.slug}/ag-ui"
    key = with_key(agent.project, "read", "write")["Authorization"]
    command = ["node", CLIENTS / "run_ag_ui_agent.mjs", node_modules, url, key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    asked, answered, again = (json.loads(line) for line in done.stdout.splitlines())

    assert asked["types"][0] == "RUN_STARTED"
    assert asked["types"][-1] == "RUN_FINISHED"
    assert [message["role"] for message in asked["messages"]] == ["user", "assistant", "assistant", "tool", "assistant"]
    assert asked["messages"][2]["calls"] == [{"name": "ledger_read", "arguments": '{"n":10}'}]
    assert [each["message"] for each in asked["interrupts"]] == ["Which one?"]

    assert answered["interrupts"] == []
    assert [message["content"] for message in answered["messages"] if message["role"] == "tool"][-1] == "the red one"
    assert answered["messages"][-1]["content"].startswith("All done. ")
    assert [message["content"] for message in again["messages"] if message["role"] == "user"] == ["Go.", "And now?"]
    assert again["state"]["status"] == "completed"
    run, fork = AgentRun.objects.exclude(pk=first.pk).order_by("pk")
    assert (run.status, fork.forked_from_id) == (RunStatus.COMPLETED, run.pk)
