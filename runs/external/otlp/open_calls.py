"""Matches tool calls and handoffs of a trace with the calls that answers requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import cast

from pydantic_ai.messages import ToolCallPart

from runs.external import contents
from runs.external.importers.block_dialects import arguments_of
from runs.external.importers.observed_messages import MAX_SEARCHED
from runs.external.otlp.attribute_names import AGENT, HANDOFF, MODEL_CALL
from runs.external.otlp.span_facts import SpanFacts
from runs.external.otlp.trace_plan import Unit


def calls_after(call: Unit, units: Iterable[Unit], known: set[str]) -> list[ToolCallPart]:
    """Return the calls of the tools that run after a model call in the same run, until its next model call.

    `known`: the IDs of open calls, which are not returned; the returned ones are added.
    """
    calls = []
    for unit in units:
        if unit.owner is not call.owner or unit.kind in (AGENT, HANDOFF):
            continue
        if unit.kind == MODEL_CALL:
            break
        facts = cast("SpanFacts", unit.main.facts)
        call_id = facts.get("call_id") or unit.main.item_id
        if call_id not in known:
            known.add(call_id)
            calls.append(contents.call_part(call_id, facts["tool"], facts.get("arguments")))
    return calls


def same_call(facts: SpanFacts, open_calls: Mapping[str, ToolCallPart]) -> str | None:
    """Return the ID of the open call with the tool and the arguments of a tool call; None without one.

    OpenLLMetry gives a call of the Responses API the ID of its item, which is not the ID that the program uses.
    """
    arguments = arguments_of(contents.call_part("", facts["tool"], facts.get("arguments")))
    oldest = islice(open_calls.items(), MAX_SEARCHED)
    same = (id_ for id_, call in oldest if call.tool_name == facts["tool"] and arguments_of(call) == arguments)
    return next(same, None)


def handoff_call(to_agent: str, open_calls: Mapping[str, ToolCallPart]) -> str | None:
    """Return the ID of the open call that requested a handoff, such as `transfer_to_billing`; None without one."""
    name = _letters(to_agent)
    oldest = islice(open_calls.items(), MAX_SEARCHED)
    named = (id_ for id_, call in oldest if name and _letters(call.tool_name) in (f"transferto{name}", name))
    return next(named, None)


def _letters(text: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(letter for letter in text.lower() if letter.isalnum())
