"""A budget of work ends a computation at its limit, in units or in CPU time."""

from __future__ import annotations

import time

import pytest

from agentops.base.fair_shares import CHECKS, WorkBudget, WorkExceeded


def test_budget_ends_at_the_limit() -> None:
    budget = WorkBudget(10, "steps")
    budget.spend(10)
    assert (budget.spent, budget.left) == (10, 0)
    for _ in range(2):
        with pytest.raises(WorkExceeded, match="takes more than 10 steps"):
            budget.spend()
    with pytest.raises(WorkExceeded, match="more than 100 bytes"):
        WorkBudget(100, "bytes").spend(101)


def spend_all(budget: WorkBudget, units: int, *, cpu_s: float = 0.0) -> None:
    """Spend `units` at a time until the budget raises. Each call takes `cpu_s` seconds of CPU time."""
    while True:
        until = time.thread_time() + cpu_s
        while time.thread_time() < until:
            pass
        budget.spend(units)


def test_budget_ends_when_cpu_time_is_spent() -> None:
    budget = WorkBudget(1_000_000, "steps", cpu_s=0.005)
    with pytest.raises(WorkExceeded, match="CPU time"):
        spend_all(budget, 5_000, cpu_s=0.001)
    assert budget.left > 0
    with pytest.raises(WorkExceeded, match="CPU time"):
        budget.spend(0)


def test_budget_can_be_cancelled_during_work() -> None:
    looks = []

    def watch() -> None:
        looks.append(budget.spent)
        if len(looks) == 3:
            raise InterruptedError

    budget = WorkBudget(CHECKS * 10, "nodes", watch=watch)
    with pytest.raises(InterruptedError):
        spend_all(budget, 1)
    assert looks == [11, 22, 33]
