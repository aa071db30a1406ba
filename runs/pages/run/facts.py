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
from runs.lifecycle.causes import OF_MOVES
from runs.models import AgentRun, AgentRunToolCall, Attempt, RunError, TurnUsage
from runs.models.workers import process_name
from runs.pages.run.banner import executor
from runs.queries.durations import times_of, with_times
from runs.statuses import LOST, RunStatus, ToolStatus
from runs.upkeep import restore
from timeline.display import clean, dollars, total_cost
from timeline.reasons import reason_label

Outcome = TurnUsage.Outcome
#: Members of `AgentRun.agent_config` that the page shows.
NAMES = ("agent_id", "version", "provider", "model")
#: Columns that may be large and that the page does not need.
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
        return dollars(self.cost)


@dataclass(frozen=True)
class ModelShare:
    """The usage of one model in a run."""

    model: str
    calls: int
    tokens: int
    cost: Decimal | None
    #: Number of calls without a known price.
    unpriced: int = 0

    @property
    def dollars(self) -> str:
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
    #: What the prompt cache saved, in US dollars; negative if it cost more. None if that is not known of any call.
    cache_saved: Decimal | None
    #: Number of all model calls.
    calls: int
    #: Milliseconds that the model calls took.
    model_ms: int
    #: Usage by model, if there are several.
    models: Sequence[ModelShare] = ()

    @property
    def cache_saving(self) -> str:
        """Return the saving or the additional cost of the prompt cache, whose first write costs more than it saves."""
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
    #: Number of attempts whose worker was lost.
    recoveries: int
    #: Whether any attempt of a model call or tool call failed.
    has_failures: bool
    #: Number of failures other than failed tool calls, such as failed attempts of model calls.
    failed_attempts: int
    #: `NAMES` of the agent when the run was created. If the agent exists, also its `slug` and `current` version.
    agent: Mapping[str, str]
    billing: Billing
    #: Whether the agent or the project sets a budget other than steps.
    has_budgets: bool
    child_count: int


@dataclass(frozen=True)
class RunFacts:
    """The key facts of a run for its template."""

    run: AgentRun
    #: The duration is the time since then; None if it does not grow.
    counts_from: datetime | None
    #: Seconds with a worker; None if the run has not started.
    duration: float | None
    #: Seconds without a worker.
    waited: float
    #: The parts of the duration in model calls and in tool calls, in milliseconds.
    model_ms: int
    tool_ms: int
    #: Whether the tools' durations come from a recording.
    is_recorded: bool
    #: Why the run has its status; empty if the status needs no explanation.
    reason: str
    #: Failed tool calls, and failed attempts of model calls.
    error_count: int
    has_errors: bool
    #: The time at which the run was last queued, if it is queued now and has started before; otherwise None.
    requeued_at: datetime | None
    #: The number of the last step that the run may take, and of the last step that any lineage may have.
    step_limit: int
    cap: int
    #: Number of tool calls by status.
    calls: list[tuple[str, int]]
    #: Labels of kinds of tokens, such as "cache read", each with the number of tokens.
    tokens: list[tuple[str, int]]
    #: Empty if it is unknown.
    cost: str
    billing: Billing
    model: str
    worker: str
    last_event_at: datetime | None
    recoveries: int

    @property
    def executor(self) -> str:
        return executor(self.run)

    @property
    def is_counting(self) -> bool:
        return self.counts_from is not None

    @property
    def is_held(self) -> bool:
        """Return whether the run waits or is paused."""
        return self.run.state in (RunStatus.WAITING, RunStatus.PAUSED)

    @property
    def arrival(self) -> str:
        """Return the meaning of `created_at`. External runs were not queued here, and may have started earlier."""
        sources = {AgentRun.Source.NATIVE: "Queued", AgentRun.Source.IMPORT: "Imported"}
        return sources.get(AgentRun.Source(self.run.source), "First received")

    @property
    def steps(self) -> int:
        """Return the number of steps of this run. `run.step_count` includes the steps of the runs that it continues."""
        return self.run.step_count - self.run.step_base

    @property
    def progress(self) -> str:
        """Return a key that changes when an open page must reload the minimap."""
        return f"{self.run.step_count} {self.error_count} {self.run.status}"

    @property
    def all_calls(self) -> int:
        return sum(count for _, count in self.calls)

    @property
    def has_cost(self) -> bool:
        return bool(self.cost)

    @property
    def cost_text(self) -> str:
        """Return the cost, or why there is none. Runners may report steps without the usage of their model calls."""
        # A step of a durable function need not be a model call.
        has_steps = self.steps > 0 and not self.run.is_durable
        has_calls = has_steps or self.billing.calls > self.billing.abandoned.calls
        return self.cost or ("unpriced" if has_calls else "no calls")


def with_facts(runs: QuerySet[AgentRun]) -> QuerySet[AgentRun]:
    """Annotate runs with the columns that `run_data_of` needs. Large columns are deferred."""
    # Attempts are counted, because the epoch is no number of attempts: a restore skips epochs.
    attempts = Attempt.objects.filter(run=OuterRef("pk")).exclude(owner=restore.OWNER).values("run")
    lost_attempts = attempts.filter(end_reason__in=LOST)
    errors = RunError.objects.filter(run=OuterRef("pk"))
    # Before errors had the ID of their call, runners reported errors of tools with the context `tool:` and that ID.
    errors_without_call = errors.filter(call_id="").exclude(context__startswith="tool:")
    failed_model_attempts = errors_without_call.exclude(context__in=OF_MOVES).order_by().values("run")
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
            failed_attempts=Coalesce(Subquery(failed_model_attempts.annotate(n=Count("pk")).values("n")), 0),
            child_count=Coalesce(Subquery(children.annotate(n=Count("pk")).values("n")), 0),
        )
    )


def load_run_data(run_id: UUID) -> RunData | None:
    """Return the data of a run, or None if it does not exist. Three queries."""
    run = with_facts(AgentRun.objects.filter(pk=run_id)).first()
    return None if run is None else run_data_of(run)


def run_data_of(run: Any) -> RunData:
    """Return the data of a run that was read with `with_facts`. Two queries."""
    statuses = AgentRunToolCall.objects.filter(run=run.pk).values_list("status")
    counts = list(statuses.annotate(n=Count("pk"), ms=Sum("duration_ms")).order_by(F("n").desc(), "status"))
    return RunData(
        run=run,
        calls_by_status={status: count for status, count, _ in counts},
        tool_ms=sum(ms or 0 for *_, ms in counts),
        recoveries=run.recoveries,
        has_failures=run.failures,
        failed_attempts=run.failed_attempts,
        billing=_billing(run.pk),
        agent={name: clean(str(getattr(run, f"config_{name}") or "")) for name in NAMES} | _agent_now(run),
        has_budgets=bool(run.config_budgets or "budgets" in (run.project.settings or ())),
        child_count=run.child_count,
    )


def _agent_now(run: Any) -> dict[str, str]:
    """Return the slug and the current version of the agent, if it exists and the run was created from a version."""
    version = str(run.config_version or "")
    is_version = version.isascii() and version.isdigit() and len(version) < 10
    return {"slug": run.agent_slug, "current": str(run.agent_version)} if run.agent_slug and is_version else {}


def _billing(run_id: UUID) -> Billing:
    """Return the details of the cost. One query, with a row for each model."""
    rows: list[Any] = list(
        TurnUsage.objects.filter(run=run_id)
        .values("model")
        .order_by("model")
        .annotate(
            **_sums("all", Q()),
            known_calls=Count("pk", filter=~Q(outcome=Outcome.PROGRAM)),
            unpriced=Count("pk", filter=Q(cost_usd=None)),
            **_sums("abandoned", Q(outcome=Outcome.ABANDONED)),
            **_sums("repeated", Q(outcome__in=[Outcome.LOST, Outcome.ROLLED_BACK])),
            incomplete=Count("pk", filter=Q(usage_complete=False)),
            cache_saved=Sum("cache_saved_usd"),
            model_ms=Sum("duration_ms"),
        )
    )
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
        abandoned,
        repeated,
        incomplete=sum(row["incomplete"] for row in rows),
        cache_saved=_total(row["cache_saved"] for row in rows),
        calls=sum(share.calls for share in shares),
        model_ms=sum(row["model_ms"] or 0 for row in rows),
        models=shares if len(shares) > 1 else [],
    )


def _total(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of the known amounts; None if none is known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None


def _sums(name: str, which: Q) -> dict[str, Any]:
    """Return aggregates of calls, tokens and cost of the model calls `which`, as `{name}_calls` and so on."""
    return {
        f"{name}_calls": Count("pk", filter=which),
        f"{name}_tokens": Sum(F("input_tokens") + F("output_tokens"), filter=which),
        f"{name}_cost": Sum("cost_usd", filter=which),
    }


def facts_of(data: RunData) -> RunFacts:
    """Return the key facts of a run. No queries."""
    run = data.run
    times = times_of(run, database_clock.now())
    is_queued_again = run.state is RunStatus.QUEUED and run.started_at is not None
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
        requeued_at=run.queued_at if is_queued_again else None,
        step_limit=run.step_limit(cap),
        cap=cap,
        calls=list(data.calls_by_status.items()),
        tokens=[(name, getattr(buckets_of(run), bucket)) for bucket, name in _BUCKETS.items()],
        cost=total_cost(run.cost_usd, run.unpriced_calls),
        billing=data.billing,
        model=data.agent["model"],
        worker=clean(process_name(run.lease_owner or "")),
        last_event_at=run.log.last_event_at,
        recoveries=data.recoveries,
    )


def _reason(run: AgentRun) -> str:
    """Return why the run has its status: the reason of the status, or the type of the error that ended the run."""
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
