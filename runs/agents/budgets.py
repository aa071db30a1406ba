"""Budgets: what a run, or a project in a day, may use; what is near its end, and what is used up.

A run counts its own use, from zero: whoever resumes a run that has used up
its budget gives the new one the same budget again. Tokens are those sent and those answered, time is the time at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any


class Budget(StrEnum):
    """Each under the name that it has in settings."""

    TOKENS = "tokens"
    COST = "cost_usd"
    WALL = "wall_s"
    #: Of all runs of a project, from midnight to midnight UTC.
    TOKENS_PER_DAY = "tokens_per_day"
    COST_PER_DAY = "cost_usd_per_day"


OF_RUN = (Budget.TOKENS, Budget.COST, Budget.WALL)
OF_DAY = (Budget.TOKENS_PER_DAY, Budget.COST_PER_DAY)
COSTS = (Budget.COST, Budget.COST_PER_DAY)
#: From this share of a budget on it is said once that it runs out.
WARN_SHARE = Decimal("0.8")
MAX = Decimal(2**63)

Amounts = Mapping[Budget, Decimal]


class InvalidBudget(ValueError):
    """Settings name a budget that nobody can keep to."""

    code = "invalid_budget"
    status = 422


def of_run(settings: Mapping[str, Any]) -> dict[Budget, Decimal]:
    """The budgets that an agent's settings give to each of its runs."""
    return _limits(settings.get("budgets"), OF_RUN)


def of_day(settings: Any) -> dict[Budget, Decimal]:
    """The budgets that a project's settings give to all of its runs, for each day."""
    if not isinstance(settings, Mapping):
        raise InvalidBudget("settings must be an object")
    return _limits(settings.get("budgets"), OF_DAY)


def used_up(limits: Amounts, used: Amounts) -> list[Budget]:
    return [budget for budget, limit in limits.items() if used[budget] >= limit]


def running_out(limits: Amounts, used: Amounts) -> list[Budget]:
    """Those of which at least 80 % are used."""
    return [budget for budget, limit in limits.items() if used[budget] >= limit * WARN_SHARE]


def words(budget: Budget, used: Decimal, limit: Decimal) -> str:
    """For people: "1,234 of 1,000 tokens", "$0.51 of $0.50 today"."""
    match budget:
        case Budget.TOKENS:
            return f"{used:,} of {limit:,} tokens"
        case Budget.TOKENS_PER_DAY:
            return f"{used:,} of {limit:,} tokens of the project's day"
        case Budget.COST:
            return f"${_money(used)} of ${_money(limit)}"
        case Budget.COST_PER_DAY:
            return f"${_money(used)} of ${_money(limit)} of the project's day"
        case Budget.WALL:
            return f"{used:,.0f} of {_money(limit)} seconds at work"


def _money(amount: Decimal) -> str:
    """Without zeros at the end, and never in the form 1E+3."""
    return f"{amount.normalize():,f}"


def _limits(given: Any, known: tuple[Budget, ...]) -> dict[Budget, Decimal]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidBudget("settings.budgets must be an object")
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        raise InvalidBudget(f"there is no budget named {unknown[0][:64]!r} here; there are: {', '.join(known)}")
    return {Budget(name): _amount(Budget(name), value) for name, value in given.items() if value is not None}


def _amount(budget: Budget, value: Any) -> Decimal:
    """A number above zero; tokens are counted whole, and money may be written as text, for it is no float."""
    whole = budget in (Budget.TOKENS, Budget.TOKENS_PER_DAY)
    taken = (int,) if whole else (int, float, str) if budget in COSTS else (int, float)
    try:
        if isinstance(value, bool) or not isinstance(value, taken):
            raise InvalidOperation
        amount = Decimal(str(value))
        if not 0 < amount < MAX:  # a comparison with NaN raises as well
            raise InvalidOperation
    except InvalidOperation:
        kind = "a whole number" if whole else "a number"
        raise InvalidBudget(f"settings.budgets.{budget} must be {kind} above 0") from None
    return amount
