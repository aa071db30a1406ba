"""The key facts of a run, below the header of its page; identical for all users.

Three queries: the run with its log, its tool calls by status, and its model calls by outcome. Each batch of live rows
includes the facts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from agentops.base import database_clock
from runs.conversation.turn_usage import buckets_of
from runs.lifecycle.error_contexts import OF_MOVES
from runs.models import AgentRun, AgentRunToolCall, Attempt, RunError, TurnUsage
from runs.queries.durations import times_of, with_times
from runs.statuses import LOST, RunStatus, ToolStatus
from runs.upkeep import restore
from timeline.display import clean, dollars, total_cost
from timeline.reasons import reason_label

Outcome = TurnUsage.Outcome
NAMES = ("agent_id", "version", "provider", "model")
LARGE = ("agent_config", "prompt", "result", "structured_output")
#: Statuses of tool calls that count as errors.
FAILED_CALLS = (ToolStatus.ERROR, ToolStatus.DENIED, ToolStatus.UNKNOWN)
#: The disjoint buckets of tokens, and their labels on the page. The first two always appear.
_BUCKETS = {
    "input": "fresh input",
    "output": "output",
    "cache_read": "cache read",
    "cache_write": "cache write",
    "cache_write_1h": "cache write for 1 h",
    "reasoning": "reasoning",
}


@dataclass(frozen=True)
class DiscardedCalls:
    """Model calls whose response was discarded. The provider bills them, so they are part of the totals."""

    calls: int = 0
    tokens: int = 0
    cost: Decimal | None = None

    @property
    def dollars(self) -> str:
        """Return the cost for display."""
        return dollars(self.cost)


@dataclass(frozen=True)
class ModelShare:
    """The usage of one model in a run."""

    model: str
    calls: int
    tokens: int
    cost: Decimal | None
    unpriced: int = 0

    @property
    def dollars(self) -> str:
        """Return the cost for display."""
        return total_cost(self.cost, self.unpriced)


@dataclass(frozen=True)
class Billing:
    """Details of the tokens and the cost of a run. All of them are part of the totals."""

    #: Model calls that failed or were stopped.
    abandoned: DiscardedCalls
    #: Model calls that were repeated after a crash.
    repeated: DiscardedCalls
    #: Number of model calls for which the provider did not report all tokens.
    incomplete: int
    cache_saved: Decimal | None
    #: Number of all model calls, and their duration in milliseconds.
    calls: int
    model_ms: int
    #: Usage by model, if there are several.
    models: Sequence[ModelShare] = ()

    @property
    def cache_saving(self) -> str:
        """Return the saving or cost of the prompt cache. Its first write costs more than it saves."""
        saved = self.cache_saved
        if not saved:
            return ""
        return f"saved {dollars(saved)}" if saved > 0 else f"cost {dollars(-saved)} more so far"

    @property
    def has_notes(self) -> bool:
        """Return whether the page has notes in addition to the cost."""
        return bool(self.cache_saved or self.abandoned.calls or self.repeated.calls or self.incomplete)


@dataclass(frozen=True)
class RunData:
    """A run with the data of other tables that its page always needs."""

    run: AgentRun
    #: Number of tool calls by status.
    calls_by_status: Mapping[str, int]
    #: Milliseconds that the tool calls took. Parallel calls are added up.
    tool_ms: int
    recoveries: int
    #: Whether any attempt of a model call or tool call failed, and the number of failures other than tool calls.
    has_failures: bool
    failed_attempts: int
    #: agent_id, version, provider and model of the agent when the run was created; `slug` and `current` version, if the
    #: agent exists.
    agent: Mapping[str, str]
    billing: Billing
    #: Whether the agent or the project sets a budget other than steps.
    has_budgets: bool
    child_count: int


@dataclass(frozen=True)
class RunFacts:
    """The key facts of a run for its template."""

    run: AgentRun
    #: Start of the running duration; None if the run is not running.
    counts_from: datetime | None
    #: Seconds with a worker; None if the run has not started. `waited` is the seconds without one.
    duration: float | None
    waited: float
    #: The part of the duration spent in model calls and tool calls, in milliseconds.
    model_ms: int
    tool_ms: int
    #: Whether the tools' durations come from a recording.
    is_recorded: bool
    #: Why the run has its status; empty if the status needs no explanation.
    reason: str
    #: Failed tool calls, and failed attempts of model calls.
    error_count: int
    has_errors: bool
    #: The time at which the run was queued again.
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
    def is_counting(self) -> bool:
        """Return whether the duration counts up."""
        return self.counts_from is not None

    @property
    def is_held(self) -> bool:
        """Return whether the run waits or is paused. The end of the timeline then shows the reason."""
        return self.run.state in (RunStatus.WAITING, RunStatus.PAUSED)

    @property
    def arrival(self) -> str:
        """Return the meaning of `created_at`. External runs were not queued here, and may have started earlier."""
        sources = {AgentRun.Source.NATIVE: "Queued", AgentRun.Source.IMPORT: "Imported"}
        return sources.get(AgentRun.Source(self.run.source), "First received")

    @property
    def steps(self) -> int:
        """Return the number of steps of this run; `step_count` includes the runs before it in the lineage."""
        return self.run.step_count - self.run.step_base

    @property
    def progress(self) -> str:
        """Return a key that changes when an open page must reload the minimap."""
        return f"{self.run.step_count} {self.error_count} {self.run.status}"

    @property
    def all_calls(self) -> int:
        """Return the number of tool calls."""
        return sum(count for _, count in self.calls)

    @property
    def has_cost(self) -> bool:
        """Return whether the cost is known."""
        return bool(self.cost)

    @property
    def cost_text(self) -> str:
        """Return the cost for display. Runners may report steps without the usage of their calls."""
        has_calls = self.steps > 0 or self.billing.calls > self.billing.abandoned.calls
        return self.cost or ("unpriced" if has_calls else "no calls")


def with_facts(runs: QuerySet[AgentRun]) -> QuerySet[AgentRun]:
    """Annotate runs with the columns that `run_data_of` needs. Large columns are deferred."""
    # Counted from attempts, not from the epoch: a restore skips epochs.
    attempts = Attempt.objects.filter(run=OuterRef("pk")).exclude(owner=restore.OWNER).values("run")
    lost_attempts = attempts.filter(end_reason__in=LOST)
    errors = RunError.objects.filter(run=OuterRef("pk"))
    # Before errors had the ID of their call, runners reported errors of tools with the context `tool:` and that ID.
    of_no_call = errors.filter(call_id="").exclude(context__startswith="tool:")
    attempts_of_others = of_no_call.exclude(context__in=OF_MOVES).order_by().values("run")
    children = AgentRun.objects.filter(parent_run=OuterRef("pk")).order_by().values("parent_run")
    names = {f"config_{name}": KT(f"agent_config__{name}") for name in NAMES}
    return with_times(
        runs.select_related("log", "project")
        .defer(*LARGE)
        .annotate(
            **names,
            agent_slug=F("agent__slug"),
            agent_version=F("agent__version"),
            config_budgets=KT("agent_config__settings__budgets"),
            attempt_count=Coalesce(Subquery(attempts.annotate(n=Count("pk")).values("n")), 0),
            recoveries=Coalesce(Subquery(lost_attempts.annotate(n=Count("pk")).values("n")), 0),
            failures=Exists(errors),
            failed_attempts=Coalesce(Subquery(attempts_of_others.annotate(n=Count("pk")).values("n")), 0),
            child_count=Coalesce(Subquery(children.annotate(n=Count("pk")).values("n")), 0),
        )
    )


def load_run_data(run_id: UUID) -> RunData | None:
    """Return the data of a run, or None if it does not exist. Three queries."""
    run = with_facts(AgentRun.objects.filter(pk=run_id)).first()
    return None if run is None else run_data_of(run)


def run_data_of(run: Any) -> RunData:
    """Return the data of a run that was read with `with_facts`. Two queries."""
    by_status = AgentRunToolCall.objects.filter(run=run.pk).values_list("status")
    counts = list(by_status.annotate(n=Count("pk"), ms=Sum("duration_ms")).order_by(F("n").desc(), "status"))
    return RunData(
        run=run,
        calls_by_status={status: count for status, count, _ in counts},
        tool_ms=sum(ms or 0 for *_, ms in counts),
        recoveries=run.recoveries,
        has_failures=run.failures,
        failed_attempts=run.failed_attempts,
        billing=_billing(run.pk),
        agent={
            **{name: clean(str(getattr(run, f"config_{name}") or "")) for name in NAMES},
            **_agent_now(run),
        },
        has_budgets=bool(run.config_budgets or "budgets" in (run.project.settings or ())),
        child_count=run.child_count,
    )


def _agent_now(run: Any) -> dict[str, str]:
    """Return the name and current version of the run's agent, if it exists and the run has a version of it."""
    version = str(run.config_version or "")
    is_version = version.isascii() and version.isdigit() and len(version) < 10
    return {"slug": run.agent_slug, "current": str(run.agent_version)} if run.agent_slug and is_version else {}


def _billing(run_id: UUID) -> Billing:
    """Return the details of the cost. One query, with a row for each model."""
    rows: list[Any] = list(
        TurnUsage.objects.filter(run=run_id).values("model").order_by("model").annotate(
            **_sums("all", Q()),
            known_calls=Count("pk", filter=~Q(outcome=Outcome.PROGRAM)),
            unpriced=Count("pk", filter=Q(cost_usd=None)),
            **_sums("abandoned", Q(outcome=Outcome.ABANDONED)),
            **_sums("repeated", Q(outcome__in=[Outcome.LOST, Outcome.ROLLED_BACK])),
            incomplete=Count("pk", filter=Q(usage_complete=False)),
            cache_saved=Sum("cache_saved_usd"),
            model_ms=Sum("duration_ms"),
        )
    )  # fmt: skip
    abandoned, repeated = (
        DiscardedCalls(
            calls=sum(row[f"{name}_calls"] for row in rows),
            tokens=sum(row[f"{name}_tokens"] or 0 for row in rows),
            cost=_total(row[f"{name}_cost"] for row in rows),
        )
        for name in ("abandoned", "repeated")
    )
    shares = [
        ModelShare(clean(row["model"]), row["known_calls"], row["all_tokens"], row["all_cost"], row["unpriced"])
        for row in rows
    ]
    return Billing(
        abandoned, repeated, sum(row["incomplete"] for row in rows), _total(row["cache_saved"] for row in rows),
        sum(share.calls for share in shares),
        sum(row["model_ms"] or 0 for row in rows),
        shares if len(shares) > 1 else [],
    )  # fmt: skip


def _total(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of the known amounts; None if none is known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None


def _sums(name: str, which: Q) -> dict[str, Any]:
    return {
        f"{name}_calls": Count("pk", filter=which),
        f"{name}_tokens": Sum(F("input_tokens") + F("output_tokens"), filter=which),
        f"{name}_cost": Sum("cost_usd", filter=which),
    }


def facts_of(data: RunData) -> RunFacts:
    """Return the key facts of a run. No queries."""
    run = data.run
    times = times_of(run, database_clock.now())
    queued_again = run.state is RunStatus.QUEUED and run.started_at is not None
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    return RunFacts(
        run=run,
        counts_from=None if times is None else times.counts_from,
        duration=None if times is None else times.worked_s,
        waited=0.0 if times is None else times.waited_s,
        model_ms=data.billing.model_ms,
        tool_ms=data.tool_ms,
        is_recorded=data.agent["provider"] == "fixture",
        reason=_reason(run),
        error_count=error_count(data),
        has_errors=has_errors(data),
        requeued_at=run.queued_at if queued_again else None,
        step_limit=run.step_limit(cap),
        cap=cap,
        calls=list(data.calls_by_status.items()),
        tokens=[(name, getattr(buckets_of(run), bucket)) for bucket, name in _BUCKETS.items()],
        cost=total_cost(run.cost_usd, run.unpriced_calls),
        billing=data.billing,
        model=data.agent["model"],
        worker=clean(run.lease_owner or ""),
        last_event_at=run.log.last_event_at,
        recoveries=data.recoveries,
    )


def _reason(run: AgentRun) -> str:
    """Return why the run has its status: the reason of the status, or the kind of error that ended it."""
    code = run.status_reason or (run.error_type if run.state is RunStatus.FAILED else "")
    return clean(reason_label(code))


def error_count(data: RunData) -> int:
    """Return the number of failed tool calls, and of failed attempts of model calls."""
    return data.failed_attempts + sum(data.calls_by_status.get(status, 0) for status in FAILED_CALLS)


def unknown_call_count(data: RunData) -> int:
    """Return the number of tool calls with an unknown outcome."""
    return data.calls_by_status.get(ToolStatus.UNKNOWN, 0)


def has_errors(data: RunData) -> bool:
    """Return whether the run, a model call or a tool call failed."""
    return data.has_failures or bool(error_count(data)) or data.run.state is RunStatus.FAILED
