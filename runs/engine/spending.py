"""The budgets of a held run and its usage so far.

The totals are columns of the run. The commit of a turn raises them, so a restart neither resets nor doubles them. A run
without budgets needs no query.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from django.db.models import Max

from agentops.base import database_clock
from runs.agents import budgets
from runs.agents.budgets import Budget
from runs.models import AgentRun, Attempt, TurnUsage
from runs.queries.project_sums import used_since
from runs.statuses import LOST
from timeline import log
from timeline.events import EventType
from timeline.events.notice import BudgetWarning, budget_standing
from timeline.log import Entry

#: Seconds after which a project's usage of today is read again. Turns of this process are added without reading.
DAY_REFRESH_S = 10.0
NO_COST = Decimal(0)


@dataclass
class Spending:
    """The limits of a run, and its usage so far."""

    limits: dict[Budget, Decimal]
    project: UUID
    tokens: int = 0
    #: US dollars.
    cost: Decimal = NO_COST
    #: Seconds for which workers had held the run when it was loaded.
    worked: float = 0.0
    #: When the run was loaded, in monotonic seconds.
    began: float = field(default_factory=time.monotonic)
    #: The keys of the warnings in the log (see `_warning_key`).
    warned: set[str] = field(default_factory=set)
    #: Why the project's budgets cannot be read; empty if they can. If set, the model is not called.
    unreadable: str = ""

    def count(self, usage: TurnUsage, step: int) -> list[Entry]:
        """Add the usage of a turn, and return the warnings to commit with it. Each warning is logged once per run."""
        if not self.limits:
            return []
        self.add(usage)
        used = self._used()
        warnings = [_warning(b, used[b], self.limits[b]) for b in budgets.nearly_exhausted(self.limits, used)]
        if usage.cost_usd is None:
            warnings += [_unknown_price_warning(b, self.limits[b]) for b in budgets.COSTS if b in self.limits]
        new_warnings = [warning for warning in warnings if _warning_key(warning) not in self.warned]
        self.warned |= set(map(_warning_key, new_warnings))
        return [Entry(warning, step=step) for warning in new_warnings]

    def add(self, usage: TurnUsage) -> None:
        """Add the usage of a turn, without warnings."""
        tokens, cost = usage.input_tokens + usage.output_tokens, usage.cost_usd or NO_COST
        self.tokens, self.cost = self.tokens + tokens, self.cost + cost
        if self._has_day_budget:
            _day_totals.add(self.project, tokens, cost)

    def used_up(self) -> str:
        """Return, as text, which budgets are used up and by how much; empty if the model may be called."""
        if not self.limits:
            return self.unreadable
        used = self._used()
        over = [budgets.describe(b, used[b], self.limits[b]) for b in budgets.exhausted(self.limits, used)]
        return "; ".join(over) or self.unreadable

    @property
    def _has_day_budget(self) -> bool:
        return any(budget in self.limits for budget in budgets.DAY_BUDGETS)

    def _used(self) -> dict[Budget, Decimal]:
        """Return the usage of each budget so far: tokens, US dollars or seconds."""
        used = {
            Budget.TOKENS: Decimal(self.tokens),
            Budget.COST: self.cost,
            Budget.WALL: Decimal(str(round(self.worked + time.monotonic() - self.began, 3))),
        }
        if self._has_day_budget:
            tokens, cost = _day_totals.of(self.project)
            used |= {Budget.TOKENS_PER_DAY: Decimal(tokens), Budget.COST_PER_DAY: cost}
        return used


def load(run: AgentRun) -> Spending:
    """Load the limits and the usage of a run. Raises `InvalidBudget` if the run's own budgets are invalid."""
    limits, unreadable = budgets.run_limits(run.agent_config.get("settings") or {}), ""
    try:
        limits |= budgets.day_limits(run.project.settings)
    except budgets.InvalidBudget as error:
        unreadable = f"the project's budgets cannot be read: {error}"
    spending = Spending(limits, run.project_id, unreadable=unreadable)
    if not limits:
        return spending
    spending.tokens, spending.cost = run.input_tokens + run.output_tokens, run.cost_usd or NO_COST
    if Budget.WALL in limits:
        spending.worked = seconds_at_work(run)
    warned = log.events_of(run.pk).filter(type=EventType.BUDGET_WARNING).values_list("payload", flat=True)
    spending.warned = {_key(payload.get("budget"), payload.get("used")) for payload in warned}
    return spending


def seconds_at_work(run: AgentRun) -> float:
    """Return for how many seconds workers have held the run, without the waits in between.

    The time of a lost worker ends with its last event, not when its loss was detected.
    """
    attempts = Attempt.objects.filter(run=run)
    holds = list(attempts.values_list("epoch", "claimed_at", "ended_at", "end_reason"))
    lost_epochs = [epoch for epoch, _, _, reason in holds if reason in LOST]
    last_event_times: dict[int, datetime] = {}
    if lost_epochs:
        events = log.events_of(run.pk).filter(epoch__in=lost_epochs).order_by().values_list("epoch")
        last_event_times = dict(events.annotate(last=Max("created_at")))
    now = database_clock.now()
    ends = {
        epoch: last_event_times.get(epoch, began) if reason in LOST else ended or now
        for epoch, began, ended, reason in holds
    }
    return sum(database_clock.seconds_between(began, ends[epoch]) for epoch, began, _, _ in holds)


class _DayTotals:
    """The usage of projects today (UTC), shared by all runs of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Start of the day, monotonic time of the reading, tokens and US dollars, by project.
        self._totals: dict[UUID, tuple[datetime, float, int, Decimal]] = {}

    def of(self, project: UUID) -> tuple[int, Decimal]:
        """Return the tokens and the US dollars that the project has used today. Reads them if they are outdated."""
        day = database_clock.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        totals = self._totals.get(project)
        if totals is None or totals[0] != day or time.monotonic() - totals[1] >= DAY_REFRESH_S:
            read_at = time.monotonic()
            tokens, cost = used_since(project, day)
            totals = (day, read_at, tokens, cost)
            with self._lock:
                self._totals[project] = totals
        return totals[2], totals[3]

    def add(self, project: UUID, tokens: int, cost: Decimal) -> None:
        """Add the usage of a turn that is about to be committed."""
        self.of(project)
        with self._lock:
            day, read_at, before, spent = self._totals[project]
            self._totals[project] = (day, read_at, before + tokens, spent + cost)


_day_totals = _DayTotals()


def _warning(budget: Budget, used: Decimal, limit: Decimal) -> BudgetWarning:
    text = f"Budget {budget_standing(used, limit)}: {budgets.describe(budget, used, limit)}"
    return BudgetWarning(budget=budget, used=f"{used:f}", limit=f"{limit:f}", message=text)


def _unknown_price_warning(budget: Budget, limit: Decimal) -> BudgetWarning:
    text = f"The cost of a model call is unknown: the budget {budget} counts only calls with a price"
    return BudgetWarning(budget=budget, limit=f"{limit:f}", message=text)


def _warning_key(warning: BudgetWarning) -> str:
    """Return the key of a warning. Each budget has two: one for its use, and one for unknown prices."""
    return _key(warning.budget, warning.used)


def _key(budget: str | None, used: str | None) -> str:
    return f"{budget}" if used is not None else f"{budget}: unknown"
