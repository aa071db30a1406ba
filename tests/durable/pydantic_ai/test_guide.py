"""The examples of docs/guides/pydantic-ai.md, on a running site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic_ai import Agent

from agentops.client import Client
from agentops.durable import DurableFunction
from agentops.durable.pydantic_ai import durable_function
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.machine import ROOT

GUIDE = ROOT / "docs/guides/pydantic-ai.md"
#: Each agent of the guide, and the result of its run.
RESULTS = {
    "support": "Done: order 17 is late, 500 cents refunded",
    "editor": "published",
    "sales": '{"item":"tea","cents":500}',
    "researcher": "The moon.",
    "writer": '{"research":"The moon."}',
    "newspaper": 'The moon. {"research":"The moon."}',
}


def examples() -> Iterator[dict[str, Any]]:
    """Yield the names of each Python example, without the line that starts the process."""
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        names: dict[str, Any] = {}
        exec(block.partition("\nserve_forever(")[0], names)
        yield names


def test_examples_of_the_guide(durable_site: DurableSite, person: Client) -> None:
    functions: list[DurableFunction] = []
    everything: dict[str, Any] = {}
    for names in examples():
        everything |= names
        functions += [durable_function(value) for value in names.values() if isinstance(value, Agent)]
        functions += [value for value in names.values() if isinstance(value, DurableFunction)]

    assert {function.name for function in functions} == RESULTS.keys()
    with durable_site.serving(*functions):
        runs = {name: durable_site.start(name) for name in RESULTS}
        durable_site.reaches(runs["support"], RunStatus.WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(runs["support"].pk), state="pending")
        person.approve(runs["support"].pk, approval.call_id)
        durable_site.reaches(runs["editor"], RunStatus.WAITING, reason="signal")
        everything["approve"](person)
        results = {name: durable_site.completes(run).result for name, run in runs.items()}

    results["sales"] = "".join(results["sales"].split())
    assert results == RESULTS
    assert AgentRun.objects.get(parent_run=runs["writer"]).result == "The moon."
