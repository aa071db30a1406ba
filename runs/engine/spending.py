"""The budgets of a held run and its usage so far.

The totals are columns of the run. Each turn's commit raises them, so a restart neither resets nor doubles them. A run
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
from runs.queries.overview.day_use import used_since
from runs.statuses import LOST
from timeline import log
from timeline.events import EventType
from timeline.events.notice import BudgetWarning, budget_standing
from timeline.log import Entry

#: Seconds after which a project's usage of today is read again; turns of this process count at once.
DAY_REFRESH_S = 10.0
NONE = Decimal(0)


@dataclass
class Spending:
    """The limits of a run, and its usage so far."""

    limits: dict[Budget, Decimal]
    project: UUID
    tokens: int = 0
    cost: Decimal = NONE
    #: Seconds at work at the time of loading, and that time (monotonic).
    worked: float = 0.0
    began: float = field(default_factory=time.monotonic)
    #: Budgets for which the log has a warning, and budgets for which it has a warning about unknown prices.
    warned: set[str] = field(default_factory=set)
    #: Why the project's budgets cannot be read; empty if they can. If set, the model is not called.
    unreadable: str = ""

    def count(self, usage: TurnUsage, step: int) -> list[Entry]:
        """Count a turn, and return the warnings to commit with it. Each warning is logged once per run."""
        if not self.limits:
            return []
        self.add(usage)
        used = self._used()
        warnings = [_warning(b, used[b], self.limits[b]) for b in budgets.nearly_exhausted(self.limits, used)]
        if usage.cost_usd is None:
            warnings += [_unknown_price_warning(b, self.limits[b]) for b in budgets.COSTS if b in self.limits]
        new_warnings = [warning for warning in warnings if _name(warning.budget, warning.used) not in self.warned]
        self.warned |= {_name(warning.budget, warning.used) for warning in new_warnings}
        return [Entry(warning, step=step) for warning in new_warnings]

    def add(self, usage: TurnUsage) -> None:
        """Count a turn without a warning."""
        tokens, cost = usage.input_tokens + usage.output_tokens, usage.cost_usd or NONE
        self.tokens, self.cost = self.tokens + tokens, self.cost + cost
        if self._has_a_day:
            _days.add(self.project, tokens, cost)

    def used_up(self) -> str:
        """Return which budgets are used up and by how much; empty if the model may be called."""
        if not self.limits:
            return self.unreadable
        used = self._used()
        over = [budgets.describe(b, used[b], self.limits[b]) for b in budgets.exhausted(self.limits, used)]
        return "; ".join(over) or self.unreadable

    @property
    def _has_a_day(self) -> bool:
        return any(budget in self.limits for budget in budgets.DAY_BUDGETS)

    def _used(self) -> dict[Budget, Decimal]:
        used = {
            Budget.TOKENS: Decimal(self.tokens),
            Budget.COST: self.cost,
            Budget.WALL: Decimal(str(round(self.worked + time.monotonic() - self.began, 3))),
        }
        if self._has_a_day:
            tokens, cost = _days.of(self.project)
            used |= {Budget.TOKENS_PER_DAY: Decimal(tokens), Budget.COST_PER_DAY: cost}
        return used


def load(run: AgentRun) -> Spending:
    """Load the usage of a run, once per claim. Raises `InvalidBudget` if the run's own budgets are invalid."""
    limits, unreadable = budgets.run_limits(run.agent_config.get("settings") or {}), ""
    try:
        limits |= budgets.day_limits(run.project.settings)
    except budgets.InvalidBudget as error:
        unreadable = f"the project's budgets cannot be read: {error}"
    spending = Spending(limits, run.project_id, unreadable=unreadable)
    if not limits:
        return spending
    spending.tokens, spending.cost = run.input_tokens + run.output_tokens, run.cost_usd or NONE
    if Budget.WALL in limits:
        spending.worked = seconds_at_work(run)
    warned = log.events_of(run.pk).filter(type=EventType.BUDGET_WARNING).values_list("payload", flat=True)
    spending.warned = {_name(payload.get("budget"), payload.get("used")) for payload in warned}
    return spending


def seconds_at_work(run: AgentRun) -> float:
    """Return how long workers have held the run, in seconds; waits between are not counted.

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


class _Days:
    """The usage of projects today, shared by all runs of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[UUID, tuple[datetime, float, int, Decimal]] = {}

    def of(self, project: UUID) -> tuple[int, Decimal]:
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
        """Count a turn that is about to be committed."""
        self.of(project)
        with self._lock:
            day, read_at, before, spent = self._totals[project]
            self._totals[project] = (day, read_at, before + tokens, spent + cost)


_days = _Days()


def _warning(budget: Budget, used: Decimal, limit: Decimal) -> BudgetWarning:
    text = f"Budget {budget_standing(used, limit)}: {budgets.describe(budget, used, limit)}"
    return BudgetWarning(budget=budget, used=f"{used:f}", limit=f"{limit:f}", message=text)


def _unknown_price_warning(budget: Budget, limit: Decimal) -> BudgetWarning:
    text = f"The cost of a model call is unknown: the budget {budget} counts only calls with a price"
    return BudgetWarning(budget=budget, limit=f"{limit:f}", message=text)


def _name(budget: str | None, used: str | None) -> str:
    """Return the key of a warning: the budget, or the budget with unknown costs."""
    return f"{budget}" if used is not None else f"{budget}: unknown"
