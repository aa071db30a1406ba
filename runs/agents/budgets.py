"""Limits in settings: budgets of tokens, cost and time for each run and for a project's day, and limits of child runs.

A run's usage starts at zero, so a run that resumes another one has the full budget again. Tokens are the sum of input
and output tokens. Time is the time for which a worker executed the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from django.conf import settings as site

from agentops.base.refusals import Invalid
from runs.statuses import OnChildPause


class Budget(StrEnum):
    """The kinds of budgets. Each value is the name of the budget in the settings of an agent or project."""

    TOKENS = "tokens"
    COST = "cost_usd"
    WALL = "wall_s"
    #: For the total of a project's runs, from midnight to midnight UTC.
    TOKENS_PER_DAY = "tokens_per_day"
    COST_PER_DAY = "cost_usd_per_day"


RUN_BUDGETS = (Budget.TOKENS, Budget.COST, Budget.WALL)
DAY_BUDGETS = (Budget.TOKENS_PER_DAY, Budget.COST_PER_DAY)
COSTS = (Budget.COST, Budget.COST_PER_DAY)
#: When this share of a budget is used, the run records a warning, once.
WARN_SHARE = Decimal("0.8")
#: Budgets must be below this.
LIMIT = Decimal(2**63)
#: The smallest budget. Costs have eight decimal places, and the text of a much smaller number could be very long.
MIN = Decimal("0.00000001")

Amounts = Mapping[Budget, Decimal]


class InvalidBudget(Invalid, ValueError):
    """The settings of an agent or project contain an invalid budget."""

    code = "invalid_budget"


def run_limits(settings: Mapping[str, Any]) -> dict[Budget, Decimal]:
    """Return the budgets that an agent's settings define for each of its runs. Raises `InvalidBudget`."""
    return _limits(settings.get("budgets"), RUN_BUDGETS)


def day_limits(settings: Any) -> dict[Budget, Decimal]:
    """Return the daily budgets that a project's settings define for all its runs. Raises `InvalidBudget`."""
    if not isinstance(settings, Mapping):
        raise InvalidBudget("settings must be an object")
    return _limits(settings.get("budgets"), DAY_BUDGETS)


def exhausted(limits: Amounts, used: Amounts) -> list[Budget]:
    """Return the budgets that are used up."""
    return [budget for budget, limit in limits.items() if used[budget] >= limit]


def nearly_exhausted(limits: Amounts, used: Amounts) -> list[Budget]:
    """Return the budgets of which at least `WARN_SHARE` is used."""
    return [budget for budget, limit in limits.items() if used[budget] >= limit * WARN_SHARE]


def describe(budget: Budget, used: Decimal, limit: Decimal) -> str:
    """Return usage and limit as text, for example "234 of 1,000 tokens" or "$0.51 of $0.50, exceeded"."""
    return _amounts(budget, used, limit) + (", exceeded" if used > limit else "")


def _amounts(budget: Budget, used: Decimal, limit: Decimal) -> str:
    """Return usage and limit with their unit."""
    match budget:
        case Budget.TOKENS:
            return f"{used:,} of {limit:,} tokens"
        case Budget.TOKENS_PER_DAY:
            return f"{used:,} of {limit:,} tokens used by the project today"
        case Budget.COST:
            return f"${_money(used)} of ${_money(limit)}"
        case Budget.COST_PER_DAY:
            return f"${_money(used)} of ${_money(limit)} used by the project today"
        case Budget.WALL:
            return f"{used:,.0f} of {_money(limit)} seconds of execution"


def _money(amount: Decimal) -> str:
    """Format an amount without trailing zeros and without an exponent."""
    return f"{amount.normalize():,f}"


def _limits(value: Any, allowed: tuple[Budget, ...]) -> dict[Budget, Decimal]:
    """Return the budgets in `settings.budgets`. Raises `InvalidBudget`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidBudget("settings.budgets must be an object")
    unknown = [str(name) for name in value if name not in allowed]
    if unknown:
        raise InvalidBudget(f"unknown budget {unknown[0][:64]!r}; use one of: {', '.join(allowed)}")
    return {Budget(name): _amount(Budget(name), amount) for name, amount in value.items() if amount is not None}


def _amount(budget: Budget, value: Any) -> Decimal:
    """Return a budget as a decimal. Token budgets are integers; costs may be text, to avoid floats."""
    is_integer = budget in (Budget.TOKENS, Budget.TOKENS_PER_DAY)
    types = (int,) if is_integer else (int, float, str) if budget in COSTS else (int, float)
    try:
        if isinstance(value, bool) or not isinstance(value, types):
            raise InvalidOperation
        amount = Decimal(str(value))
        if not MIN <= amount < LIMIT:  # a comparison with NaN raises InvalidOperation, too
            raise InvalidOperation
    except InvalidOperation:
        kind = "a whole number" if is_integer else "a number"
        raise InvalidBudget(f"settings.budgets.{budget} must be {kind} above 0, not {str(value)[:64]!r}") from None
    return amount


#: Maximum of the settings `max_child_depth` and `max_children`.
MAX_DEPTH, MAX_CHILDREN = 10, 1000


#: The setting for what a call does when its child run pauses, unless the arguments of the call decide it.
ON_CHILD_PAUSE = "on_child_pause"


class InvalidChildLimit(ValueError):
    """The settings of an agent contain an invalid value for its child runs."""


@dataclass(frozen=True)
class ChildLimits:
    """Limits on the runs below a run."""

    #: Levels of runs below the run: 1 allows children, 2 also allows their children.
    depth: int
    #: Number of direct children. A resumed child does not count again.
    children: int
    #: What a call does when its child run pauses, unless its arguments decide it.
    on_pause: OnChildPause = OnChildPause.RETURN


def child_limits(settings: Mapping[str, Any]) -> ChildLimits:
    """Return the limits from an agent's settings, never above the site's. Raises `InvalidChildLimit`."""
    return ChildLimits(
        depth=_lower(settings, "max_child_depth", site.AGENTOPS_MAX_CHILD_DEPTH, MAX_DEPTH),
        children=_lower(settings, "max_children", site.AGENTOPS_MAX_CHILDREN, MAX_CHILDREN),
        on_pause=_on_pause(settings.get(ON_CHILD_PAUSE)),
    )


def _on_pause(value: Any) -> OnChildPause:
    if value is not None and value not in list(OnChildPause):
        raise InvalidChildLimit(f'settings.{ON_CHILD_PAUSE} must be "return" or "wait", not {str(value)[:64]!r}')
    return OnChildPause(value or OnChildPause.RETURN)


def _lower(settings: Mapping[str, Any], name: str, limit: int, maximum: int) -> int:
    """Return the lower of a setting and the site's limit. Raises `InvalidChildLimit` if it is not 0 to `maximum`."""
    value = settings.get(name)
    if value is None:
        return limit
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise InvalidChildLimit(f"settings.{name} must be a whole number from 0 to {maximum}, not {str(value)[:64]!r}")
    return min(value, limit)
