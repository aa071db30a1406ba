"""The examples of docs/guides/claude-agent-sdk.md, on a running site, with a scripted model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentops.client import Client
from runs.statuses import RunStatus
from tests.support.claude_model import call
from tests.support.claude_rig import ClaudeRig
from tests.support.durable import DurableSite
from tests.support.machine import ROOT

GUIDE = ROOT / "docs/guides/claude-agent-sdk.md"


def blocks() -> Iterator[str]:
    """Yield the Python examples, without the line that starts the process."""
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield block.partition("\nserve_forever(")[0]


def test_examples_of_the_guide(durable_site: DurableSite, rig: ClaudeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    model = rig.model(
        [call("toolu_1", "mcp__shop__price", item="tea")],
        [call("toolu_2", "mcp__shop__charge", cents=500)],
        "Confirmed.",
    )
    options = rig.options(model)
    # The examples name no program: the SDK finds it in PATH, and the program its model in the environment.
    folder = Path(str(options.cli_path)).parent
    for name, value in {**options.env, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    for block in blocks():
        exec(block, names)

    with (
        durable_site.serving(names["agent"], names["seller"]),
        Client(durable_site.site.url, durable_site.site.key("read", "write")) as person,
    ):
        run = durable_site.reaches(durable_site.start("shop", "One tea."), RunStatus.WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), kind="approval", state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)
        model.script = ["Voilà."]
        sold = durable_site.completes(durable_site.start("seller", "One tea."))

    assert (run.result, sold.result) == ("Confirmed.", "Voilà.")
