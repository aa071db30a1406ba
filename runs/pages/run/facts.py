"""The key facts of a run: what the list under the head of its page says, the same for every reader.

Three queries: the run with its log, its tool calls by status, and its model calls by what became of them; so they can
be told anew with each batch of live rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce
from django.utils import timezone

from runs.models import AgentRun, AgentRunToolCall, Attempt, RunError, TurnUsage
from runs.pages.runs.run_row import dollars
from runs.queries.durations import times_of, with_times
from runs.statuses import LOST, RunStatus, ToolStatus
from runs.upkeep import restore
from timeline.shown import clean

Outcome = TurnUsage.Outcome
NAMES = ("agent_id", "version", "provider", "model")
LARGE = ("agent_config", "prompt", "result", "structured_output")
_TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")


@dataclass(frozen=True)
class Wasted:
    """Model calls without a lasting answer, which the provider bills too."""

    calls: int = 0
    tokens: int = 0
    cost: Decimal | None = None

    @property
    def dollars(self) -> str:
        return dollars(self.cost)


@dataclass(frozen=True)
class Billing:
    """What of a run's tokens and cost needs explaining; all of it is part of the totals."""

    #: Attempts that failed or were stopped, and calls that were repeated after a crash.
    abandoned: Wasted
    repeated: Wasted
    #: Calls of which the provider did not report all tokens.
    incomplete: int
    cache_saved: Decimal | None

    @property
    def cache_saving(self) -> str:
        """In words: the first call of a run writes the cache, which costs more than it saves."""
        saved = self.cache_saved
        if not saved:
            return ""
        return f"saved {dollars(saved)}" if saved > 0 else f"cost {dollars(-saved)} more so far"


@dataclass(frozen=True)
class Loaded:
    """A run, and what of other tables its page always says."""

    run: AgentRun
    #: Number of tool calls by status.
    calls: Mapping[str, int]
    recoveries: int
    #: Whether any attempt of anything failed.
    failures: bool
    #: Of the agent, as the run froze it: agent_id, version, provider, model.
    agent: Mapping[str, str]
    billing: Billing
    #: Whether anything but its steps is limited: by its agent's settings, or by its project's.
    budgeted: bool


@dataclass(frozen=True)
class RunFacts:
    run: AgentRun
    #: From when the duration of a running run counts up.
    counts_from: datetime | None
    #: Seconds that workers had it; None where it has not started. The rest of its time it waited.
    duration: float | None
    waited: float
    #: Since when it has been in the queue again.
    requeued_at: datetime | None
    step_limit: int
    cap: int
    calls: list[tuple[str, int]]
    tokens: list[tuple[str, int]]
    cost: str
    billing: Billing
    model: str
    worker: str
    last_event_at: datetime | None
    recoveries: int

    @property
    def ticks(self) -> bool:
        return self.counts_from is not None

    @property
    def steps(self) -> int:
        """Of this run alone; its `step_count` counts over the lineage."""
        return self.run.step_count - self.run.step_base

    @property
    def all_calls(self) -> int:
        return sum(count for _, count in self.calls)

    @property
    def priced(self) -> bool:
        return bool(self.cost)


def with_facts(runs: QuerySet[AgentRun]) -> QuerySet[AgentRun]:
    """Runs with all that `loaded` needs of their own row: not the texts, which may be large, and of the frozen agent
    only its names."""
    # Not by the epoch: a restore skips many.
    taken = Attempt.objects.filter(run=OuterRef("pk")).exclude(owner=restore.OWNER).values("run")
    lost = taken.filter(end_reason__in=LOST)
    names = {f"config_{name}": KT(f"agent_config__{name}") for name in NAMES}
    return with_times(
        runs.select_related("log", "project")
        .defer(*LARGE)
        .annotate(
            **names,
            config_budgets=KT("agent_config__settings__budgets"),
            attempts_made=Coalesce(Subquery(taken.annotate(n=Count("pk")).values("n")), 0),
            recoveries=Coalesce(Subquery(lost.annotate(n=Count("pk")).values("n")), 0),
            failures=Exists(RunError.objects.filter(run=OuterRef("pk"))),
        )
    )


def load(run_id: UUID) -> Loaded | None:
    run = with_facts(AgentRun.objects.filter(pk=run_id)).first()
    return None if run is None else loaded(run)


def loaded(run: Any) -> Loaded:
    """Of a run from `with_facts`."""
    by_status = AgentRunToolCall.objects.filter(run=run.pk).values_list("status").annotate(n=Count("pk"))
    return Loaded(
        run=run,
        calls=dict(by_status.order_by(F("n").desc(), "status")),
        recoveries=run.recoveries,
        failures=run.failures,
        billing=_billing(run.pk),
        agent={name: clean(str(getattr(run, f"config_{name}") or "")) for name in NAMES},
        budgeted=bool(run.config_budgets or "budgets" in (run.project.settings or ())),
    )


def _billing(run_id: UUID) -> Billing:
    turns = TurnUsage.objects.filter(run=run_id)
    found = turns.aggregate(
        **_sums("abandoned", Q(outcome=Outcome.ABANDONED)),
        **_sums("repeated", Q(outcome__in=[Outcome.LOST, Outcome.ROLLED_BACK])),
        incomplete=Count("pk", filter=Q(usage_complete=False)),
        cache_saved=Sum("cache_saved_usd"),
    )
    abandoned, repeated = (
        Wasted(found[f"{name}_calls"], found[f"{name}_tokens"] or 0, found[f"{name}_cost"])
        for name in ("abandoned", "repeated")
    )
    return Billing(abandoned, repeated, found["incomplete"], found["cache_saved"])


def _sums(name: str, which: Q) -> dict[str, Any]:
    return {
        f"{name}_calls": Count("pk", filter=which),
        f"{name}_tokens": Sum(F("input_tokens") + F("output_tokens"), filter=which),
        f"{name}_cost": Sum("cost_usd", filter=which),
    }


def facts_of(found: Loaded) -> RunFacts:
    run = found.run
    times = times_of(run, timezone.now())
    queued_again = run.state is RunStatus.QUEUED and run.started_at is not None
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    return RunFacts(
        run=run,
        counts_from=times.counts_from if times is not None and run.state is RunStatus.RUNNING else None,
        duration=None if times is None else times.worked_s,
        waited=0.0 if times is None else times.waited_s,
        requeued_at=run.queued_at if queued_again else None,
        step_limit=run.step_limit(cap),
        cap=cap,
        calls=list(found.calls.items()),
        tokens=[(name.replace("_", " "), getattr(run, f"{name}_tokens")) for name in _TOKENS],
        cost=dollars(run.cost_usd),
        billing=found.billing,
        model=found.agent["model"],
        worker=clean(run.lease_owner or ""),
        last_event_at=run.log.last_event_at,
        recoveries=found.recoveries,
    )


def unresolved(found: Loaded) -> int:
    """Calls of which nobody knows what came."""
    return found.calls.get(ToolStatus.UNKNOWN, 0)


def has_errors(found: Loaded) -> bool:
    bad = (ToolStatus.ERROR, ToolStatus.DENIED, ToolStatus.UNKNOWN)
    failed = found.failures or any(found.calls.get(status) for status in bad)
    return failed or found.run.state is RunStatus.FAILED
