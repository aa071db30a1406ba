"""The examples of docs/guides/langgraph.md, on a running site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentops.client import Client
from agentops.durable import DurableFunction
from agentops.durable.langgraph import durable_function
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.machine import ROOT

GUIDE = ROOT / "docs/guides/langgraph.md"
WAITING = RunStatus.WAITING


def blocks() -> Iterator[str]:
    """Yield the Python examples, without the line that starts the process."""
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield block.partition("\nserve_forever(")[0]


def order(site: DurableSite, person: Client, run: AgentRun) -> None:
    site.reaches(run, WAITING, reason="input")
    person.reply(run.pk, "M")
    site.reaches(run, WAITING, reason="approval")
    [approval] = person.approvals(run_id=str(run.pk), kind="approval", state="pending")
    person.approve(run.pk, approval.call_id)


def test_examples_of_the_guide(durable_site: DurableSite, person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOPS_URL", durable_site.site.url)
    monkeypatch.setenv("AGENTOPS_API_KEY", durable_site.site.key("work"))
    functions: list[DurableFunction] = []
    threads: list[Any] = []
    for block in blocks():
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(block, str(GUIDE), "exec"), names)
        functions += [each for each in names.values() if isinstance(each, DurableFunction)]
        if "desk" in names:
            functions.append(durable_function(names["desk"]))
        if "thread" in names:
            threads.append(names["state"])
    assert sorted(function.name for function in functions) == ["desk", "report", "shop"]
    assert [str(message.text) for message in threads[0]["messages"]] == ["Hello", "1 messages", "Again", "3 messages"]

    with durable_site.serving(*functions):
        desk = durable_site.start("desk", "Where is order 17?")
        report = durable_site.start("report", '{"topic": "tides"}')
        shop = durable_site.start("shop", '{"item": "shirt"}')
        order(durable_site, person, shop)
        for run in (desk, report, shop):
            durable_site.completes(run)

    assert desk.result == "Your order is late. You get 500 cents back."
    assert report.result == '{\n  "topic": "tides",\n  "pages": 5\n}'
    assert shop.result == '{\n  "item": "shirt",\n  "size": "M",\n  "paid": true\n}'
