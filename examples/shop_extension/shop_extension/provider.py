"""A provider that needs no model: it answers by rules, one piece at a time."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from agentops.providers import ModelCall, Piece, ProviderUnusable, RequestUsage, StreamingProvider, ToolCallPart


class RulesProvider(StreamingProvider):
    """Answers questions about orders by rules."""

    def check(self, model: str, settings: object) -> None:
        if model != "clerk":
            raise ProviderUnusable(f"there are no rules named {model!r}; use 'clerk'")

    async def answer(self, call: ModelCall) -> AsyncIterator[Piece]:
        last = call.history[-1].parts[-1]
        if last.part_kind == "tool-return":
            yield "The shop says: "
            yield str(last.content)
        elif found := re.search(r"[Rr]efund (\d+) cents of (A-\d+)", str(last.content)):
            yield "I will refund that."
            yield ToolCallPart("refund", {"order": found[2], "cents": int(found[1])})
        elif found := re.search(r"A-\d+", str(last.content)):
            yield ToolCallPart("order_status", {"order": found[0]})
        else:
            yield "Which order is it about?"
        yield RequestUsage(input_tokens=len(call.history), output_tokens=1)
