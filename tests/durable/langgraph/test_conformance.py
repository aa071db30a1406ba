"""LangGraph's own conformance suite for checkpointers, with all base and optional capabilities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from langgraph.checkpoint.conformance import checkpointer_test, validate

from agentops.durable.langgraph import AgentopsSaver
from tests.support.durable import DurableSite


def test_all_capabilities(durable_site: DurableSite) -> None:
    url, key = durable_site.site.url, durable_site.site.key("work")

    @checkpointer_test(name="AgentopsSaver")
    async def make_saver() -> AsyncIterator[AgentopsSaver]:
        saver = AgentopsSaver(url=url, key=key)
        yield saver
        await saver.aclose()

    report = asyncio.run(validate(make_saver))

    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert report.passed_all()
    assert len(report.results) == 8
