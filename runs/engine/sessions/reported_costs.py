"""What a program reports that its session has cost: more than its answers, for it also calls models of its own."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from django.db.models import Q, Sum
from pydantic_ai.messages import ModelResponse

from runs.agents.prices import COST_PLACES
from runs.conversation.turn_usage import MAX_COST
from runs.models import AgentRun, TurnUsage
from runs.models.run import CostSource

NOTHING = Decimal(0)


class ReportedCosts:
    """The costs of a run whose program reports a total at the end of each turn, for each of its processes anew."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._process: object = None
        #: What the run and its sub-agents had cost before the process.
        self._before = NOTHING

    def settle(self, usage: TurnUsage, answer: ModelResponse, *, process: object) -> None:
        """Add to the last answer of a turn what the program reports beyond the known costs of its answers.

        Prices of the project stay as they are.
        """
        if process is not self._process:
            self._process, self._before = process, self._spent()
        total = _total(answer)
        if total is None or usage.cost_source == CostSource.PROJECT:
            return
        known = self._spent() - self._before + (usage.cost_usd or NOTHING)
        usage.cost_usd = (usage.cost_usd or NOTHING) + max(total - known, NOTHING)
        usage.cost_source = CostSource.REPORTED.value

    def _spent(self) -> Decimal:
        runs = AgentRun.objects.filter(Q(pk=self._run.pk) | Q(parent_run=self._run))
        return runs.aggregate(cost=Sum("cost_usd"))["cost"] or NOTHING


def _total(answer: ModelResponse) -> Decimal | None:
    try:
        total = round(Decimal(str((answer.provider_details or {}).get("total_cost_usd"))), COST_PLACES)
        return total if 0 <= total < MAX_COST else None
    except InvalidOperation:  # not a number, in words or by IEEE 754
        return None
