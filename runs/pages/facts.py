"""The key facts of a run: what the list under the head of its page says, the same for every reader.

A door's part: may import runs' models and the pure parts. Two queries: the run with its log, and its calls by status;
so they can be told anew with each batch of live rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, QuerySet, Subquery
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from runs import restore
from runs.models import AgentRun, AgentRunToolCall, Attempt, RunError
from runs.pages.rows_of_list import dollars
from runs.statuses import RunStatus, ToolStatus
from timeline.shown import clean

NAMES = ("agent_id", "version", "provider", "model")
LARGE = ("agent_config", "prompt", "result", "summary", "structured_output")
#: Ends of an attempt after which another worker went on with the run.
LOST = ("died", "fenced")
_TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")


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
    #: Whether anything but its steps is limited: by its agent's settings, or by its project's.
    budgeted: bool


@dataclass(frozen=True)
class Facts:
    run: AgentRun
    ticks: bool
    #: Seconds from the start to the last sign of life; None where it has not started.
    duration: float | None
    step_limit: int
    cap: int
    calls: list[tuple[str, int]]
    tokens: list[tuple[str, int]]
    cost: str
    model: str
    worker: str
    last_event_at: datetime | None
    recoveries: int

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
    return (
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
        agent={name: clean(str(getattr(run, f"config_{name}") or "")) for name in NAMES},
        budgeted=bool(run.config_budgets or "budgets" in (run.project.settings or ())),
    )


def facts_of(found: Loaded) -> Facts:
    run = found.run
    running = run.state is RunStatus.RUNNING
    # Of a run that died the end is its last sign of life, not when someone noticed.
    end = run.completed_at or run.log.last_event_at
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    return Facts(
        run=run,
        ticks=running and run.started_at is not None,
        duration=(end - run.started_at).total_seconds() if run.started_at and end else None,
        step_limit=run.step_limit(cap),
        cap=cap,
        calls=list(found.calls.items()),
        tokens=[(name.replace("_", " "), getattr(run, f"{name}_tokens")) for name in _TOKENS],
        cost=dollars(run.cost_usd),
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
