"""Usage that a program reports for its session. It exceeds the usage of the answers, because the program also calls
models internally.

At the end of each turn the program reports the totals of its process: the cost, and the tokens and cost of each model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.db.models import Q, Sum
from pydantic_ai.messages import ModelResponse

from agentops.base import database_clock
from runs.agents.prices import ModelPrice, price_of_call, prices_for
from runs.conversation.turn_usage import amount_of, buckets_of, cost_by
from runs.lifecycle.session_subagents import subagents_of
from runs.models import AgentRun, TurnUsage
from runs.models.run import CostSource
from runs.providers.claude_cli import blocks

NOTHING = Decimal(0)
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
#: How many models of a report are read.
MAX_MODELS = 50
#: Suffixes that a program adds to the name of a model: the size of its context window, or the date of its version.
_ADDED = re.compile(r"\[[^]]*\]$|-\d{8}(?=\[|$)")


@dataclass
class _Used:
    """Tokens by kind, and US dollars."""

    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))
    cost: Decimal = NOTHING

    def add(self, tokens: Mapping[str, int], cost: Decimal, *, sign: int = 1) -> None:
        for name in TOKENS:
            self.tokens[name] += sign * tokens[name]
        self.cost += sign * cost


class ReportedCosts:
    """The costs of a run whose program reports totals at the end of each turn. Each process counts from 0."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        #: The program's process whose totals were reported last.
        self._process: object = None
        #: The usage of the run and its sub-agents before the process started, by model.
        self._before: dict[str, _Used] = {}

    def settle(
        self, usage: TurnUsage, answer: ModelResponse, *, process: object, prices: Sequence[ModelPrice]
    ) -> list[TurnUsage]:
        """Add the reported cost that exceeds the known costs to the last answer of a turn, whose usage is `usage`.

        Returns unsaved rows of the tokens that no answer includes, by model. A cost by the project's own prices stays.
        """
        if process is not self._process:
            self._process, self._before = process, self._used()
        details = answer.provider_details or {}
        total, by_model = amount_of(details.get("total_cost_usd")), details.get("model_usage")
        if total is None and not by_model:
            return []
        known = self._known(usage)
        rows = self._rows(usage, by_model if isinstance(by_model, dict) else {}, known, prices)
        if total is not None and usage.cost_source != CostSource.PROJECT:
            spent = sum((used.cost for used in known.values()), NOTHING)
            spent += sum((row.cost_usd or NOTHING for row in rows), NOTHING)
            usage.cost_usd = (usage.cost_usd or NOTHING) + max(total - spent, NOTHING)
            usage.cost_source, usage.cost_note = CostSource.REPORTED.value, ""
        return rows

    def _rows(
        self, usage: TurnUsage, reported: Mapping[str, Any], known: Mapping[str, _Used], prices: Sequence[ModelPrice]
    ) -> list[TurnUsage]:
        """Return the rows of the reported tokens and costs that exceed the known ones, by model."""
        rows = []
        for model, totals in list(reported.items())[:MAX_MODELS]:
            used = known.get(_plain(model), _Used())
            counts = blocks.usage_of(totals)
            rest = {name: max(getattr(counts, name) - used.tokens[name], 0) for name in TOKENS}
            cost = max((amount_of(totals.get("cost_usd")) or NOTHING) - used.cost, NOTHING)
            if _plain(model) == _plain(usage.model):
                cost = NOTHING  # `settle` adds it to the answer, with the cost that the report gives to no model
            if any(rest.values()) or cost:
                rows.append(self._row(usage, model, rest, cost, prices))
        return rows

    def _row(
        self, usage: TurnUsage, model: str, tokens: Mapping[str, int], cost: Decimal, prices: Sequence[ModelPrice]
    ) -> TurnUsage:
        """Return the row of tokens that no answer includes. A price of the project replaces the reported cost."""
        row = TurnUsage(
            run_id=self._run.pk,
            step_number=usage.step_number,
            attempt=usage.attempt,
            model=model[:200],
            **tokens,
            cost_usd=cost,
            cost_source=CostSource.REPORTED.value,
            outcome=TurnUsage.Outcome.PROGRAM,
            created_at=database_clock.now(),
        )
        # No tier and no size: these are totals of several calls.
        price = price_of_call(prices_for(prices, model), "", 0)
        if price is not None:
            row.cost_usd = cost_by(price, buckets_of(row))
            row.cost_source = (CostSource.UNKNOWN if row.cost_usd is None else CostSource.PROJECT).value
        return row

    def _known(self, usage: TurnUsage) -> dict[str, _Used]:
        """Return the stored usage of this process, by model, plus that of the answer, which is not stored yet."""
        known = self._used()
        tokens = {name: getattr(usage, name) for name in TOKENS}
        known.setdefault(_plain(usage.model), _Used()).add(tokens, usage.cost_usd or NOTHING)
        for model, used in self._before.items():
            known.setdefault(model, _Used()).add(used.tokens, used.cost, sign=-1)
        return known

    def _used(self) -> dict[str, _Used]:
        """Return the stored usage of the run and its sub-agents, by model."""
        runs = Q(run=self._run) | Q(run__in=subagents_of(self._run))
        rows: Any = TurnUsage.objects.filter(runs).values("model").order_by("model")
        by_model: dict[str, _Used] = {}
        for row in rows.annotate(cost=Sum("cost_usd"), **{f"{name}_sum": Sum(name) for name in TOKENS}):
            tokens = {name: row[f"{name}_sum"] for name in TOKENS}
            by_model.setdefault(_plain(row["model"]), _Used()).add(tokens, row["cost"] or NOTHING)
        return by_model


def _plain(model: str) -> str:
    """Return the name of a model without the suffixes that a program adds."""
    return _ADDED.sub("", _ADDED.sub("", model))
