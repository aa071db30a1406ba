"""Budgets: limits on the tokens, cost and working time of a run, or of all runs of a project in a day.

Usage is counted per run, starting at zero: a run that resumes another one gets the full budget again.
Tokens are the sum of input and output tokens. Time is the time for which a worker executed the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from agentops.base.refusals import Invalid


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
#: The share of a budget from which a run records a warning, once.
WARN_SHARE = Decimal("0.8")
MAX = Decimal(2**63)
#: Costs are stored with eight decimal places. Text of much smaller limits could have a million digits.
LEAST = Decimal("0.00000001")

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
    """Return the budgets of which at least 80 % is used."""
    return [budget for budget, limit in limits.items() if used[budget] >= limit * WARN_SHARE]


def describe(budget: Budget, used: Decimal, limit: Decimal) -> str:
    """Return usage and limit as text, for example "234 of 1,000 tokens" or "$0.51 of $0.50, exceeded"."""
    return _amounts(budget, used, limit) + (", exceeded" if used > limit else "")


def _amounts(budget: Budget, used: Decimal, limit: Decimal) -> str:
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
    """Format without trailing zeros and without an exponent."""
    return f"{amount.normalize():,f}"


def _limits(value: Any, allowed: tuple[Budget, ...]) -> dict[Budget, Decimal]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidBudget("settings.budgets must be an object")
    unknown = [str(name) for name in value if name not in allowed]
    if unknown:
        raise InvalidBudget(f"unknown budget {unknown[0][:64]!r}; use one of: {', '.join(allowed)}")
    return {Budget(name): _amount(Budget(name), amount) for name, amount in value.items() if amount is not None}


def _amount(budget: Budget, value: Any) -> Decimal:
    """Return a limit as a decimal above 0. Token limits are integers; costs may be text, to avoid floats."""
    is_integer = budget in (Budget.TOKENS, Budget.TOKENS_PER_DAY)
    types = (int,) if is_integer else (int, float, str) if budget in COSTS else (int, float)
    try:
        if isinstance(value, bool) or not isinstance(value, types):
            raise InvalidOperation
        amount = Decimal(str(value))
        if not LEAST <= amount < MAX:  # a comparison with NaN raises as well
            raise InvalidOperation
    except InvalidOperation:
        kind = "a whole number" if is_integer else "a number"
        raise InvalidBudget(f"settings.budgets.{budget} must be {kind} above 0, not {str(value)[:64]!r}") from None
    return amount
