"""Decides which spans of a trace can be filed now, and as which units of work.

Units are agents, model calls, tool calls, and handoffs between agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runs.external.otlp.attribute_names import AGENT, HANDOFF, MODEL_CALL, TOOL_CALL
from runs.external.otlp.trace_tree import MODEL_KINDS, TraceTree
from runs.models import OtlpItem

#: The order of units that began at the same time.
_RANKS = {AGENT: 0, MODEL_CALL: 1, TOOL_CALL: 2, HANDOFF: 3}


@dataclass(eq=False)
class Unit:
    """Work that becomes events of one run. Several spans may report the same model call."""

    kind: str
    #: The agent whose child run it belongs to; None: the run of the trace.
    owner: OtlpItem | None
    #: The span with the message, or the only span.
    main: OtlpItem
    #: All spans of the unit.
    items: list[OtlpItem] = field(default_factory=list)
    #: The model calls whose tokens count: each with the spans that report it, the innermost first.
    counted: list[list[OtlpItem]] = field(default_factory=list)

    @property
    def order(self) -> tuple[Any, ...]:
        """Return the sort key: first when the unit began."""
        items = self.items or [self.main]
        begin = min(item.started_at for item in items)
        return begin, _RANKS[self.kind], self.main.ended_at, self.main.item_id


@dataclass
class TracePlan:
    """The spans that can be filed now."""

    units: list[Unit] = field(default_factory=list)
    #: Spans that become no events: they only enclose others, or repeat filed spans.
    silent: list[OtlpItem] = field(default_factory=list)

    @cached_property
    def owners_with_request(self) -> set[OtlpItem | None]:
        """Return the owners of the model calls whose input is known."""
        calls = (unit for unit in self.units if unit.kind == MODEL_CALL)
        return {unit.owner for unit in calls if (unit.main.facts or {}).get("input")}


def plan(tree: TraceTree) -> TracePlan:
    """Return the plan for the spans of a trace that are not filed yet and can be filed now."""
    result = TracePlan()
    calls: list[OtlpItem] = []
    for item in tree.items:
        if item.filed_under is not None or not tree.is_ready(item):
            continue
        kind = tree.kind(item)
        if kind in MODEL_KINDS:
            calls.append(item)
        elif _may_be_a_model(tree, item) and not tree.has_waited(item):
            continue
        else:
            _add(tree, item, kind, result)
    _add_model_calls(tree, calls, result)
    result.units.sort(key=lambda unit: unit.order)
    return result


def merged_usage(reports: Iterable[OtlpItem]) -> dict[str, int]:
    """Return the tokens of a model call that several spans report.

    Each count is the largest: a library that does not know a kind of tokens omits it, or sends 0.
    """
    merged: dict[str, int] = {}
    for item in reports:
        merged |= {name: max(count, merged.get(name, 0)) for name, count in usage_of(item).items()}
    return merged


def usage_of(item: OtlpItem) -> Mapping[str, int]:
    """Return the tokens that a span reports; empty without any."""
    usage: Mapping[str, int] = (item.facts or {}).get("usage") or {}
    return usage if any(usage.values()) else {}


def _add(tree: TraceTree, item: OtlpItem, kind: str, result: TracePlan) -> None:
    """Add a span that is not a model call to the plan."""
    owner = tree.owner(item)
    if kind in _RANKS:
        result.units.append(Unit(kind, owner, item, [item]))
    if _may_be_a_model(tree, item):
        result.units.append(Unit(MODEL_CALL, owner, item, [item], [[item]]))
    elif kind not in _RANKS:
        result.silent.append(item)


def _may_be_a_model(tree: TraceTree, item: OtlpItem) -> bool:
    """Return whether a span seems to report the tokens of model calls that have no spans."""
    is_other = tree.kind(item) not in (*MODEL_KINDS, TOOL_CALL, HANDOFF)
    return is_other and bool(usage_of(item)) and item.item_id not in tree.enclosing_models


def _add_model_calls(tree: TraceTree, calls: Sequence[OtlpItem], result: TracePlan) -> None:
    """Add the model calls. Spans within another one, and spans with the same response ID, are the same call."""
    groups: dict[str, list[OtlpItem]] = {}
    for item in calls:
        outer = tree.place(item).model or item
        if outer.filed_under is not None:
            result.silent.append(item)
        elif tree.is_ready(outer):
            groups.setdefault(outer.item_id, []).append(item)
    filed_responses = {item.response_id for item in tree.items if item.filed_under is not None and item.response_id}
    filed_outer = {
        around.item_id
        for item in tree.items
        if item.filed_under is not None and (around := tree.place(item).model) is not None
    }
    for members in _joined(groups.values()):
        outer_ids = {(tree.place(item).model or item).item_id for item in members}
        if outer_ids & filed_outer or any(item.response_id in filed_responses for item in members if item.response_id):
            result.silent += members
        else:
            main = _main(tree, members)
            result.units.append(Unit(MODEL_CALL, tree.owner(main), main, members, _counted(tree, members)))


def _joined(groups: Iterable[list[OtlpItem]]) -> list[list[OtlpItem]]:
    """Join the groups that share a response ID."""
    joined: list[list[OtlpItem]] = []
    by_response: dict[str, list[OtlpItem]] = {}
    for group in groups:
        responses = [item.response_id for item in group if item.response_id]
        target = next((by_response[response] for response in responses if response in by_response), None)
        if target is None:
            target = []
            joined.append(target)
        target += group
        by_response |= dict.fromkeys(responses, target)
    return joined


def _main(tree: TraceTree, members: Sequence[OtlpItem]) -> OtlpItem:
    """Return the span whose messages are used: the outermost with an answer, or else with an input."""

    def richness(item: OtlpItem) -> tuple[bool, bool, bool, float]:
        facts = item.facts or {}
        is_outermost = tree.place(item).model is None
        return bool(facts.get("output")), bool(facts.get("input")), is_outermost, -item.started_at.timestamp()

    return max(members, key=richness)


def _counted(tree: TraceTree, members: Sequence[OtlpItem]) -> list[list[OtlpItem]]:
    """Return the model calls whose tokens count: the innermost spans with tokens, by response ID.

    A single call is also reported by the spans around it, which may know more kinds of tokens.
    """
    reporting = [item for item in members if usage_of(item)]
    inner = [item for item in reporting if item.item_id not in tree.enclosing_models] or reporting
    by_response: dict[str, list[OtlpItem]] = {}
    for item in inner:
        by_response.setdefault(item.response_id or item.item_id, []).append(item)
    calls = list(by_response.values())
    if len(calls) == 1:
        calls[0] += [item for item in reporting if item not in inner]
    return calls
