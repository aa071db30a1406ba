"""A condition that a rule detects, and the rules that a query covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from runs.models import AlertRule

#: Ended runs are checked again for this period, because commits and clocks are not in order.
OVERLAP = timedelta(minutes=5)


@dataclass(frozen=True)
class Condition:
    """A condition that a rule detects. Conditions with the same `key` are the same finding."""

    rule_id: UUID
    #: The name of the agent, or `flow NAME` for runs of a flow.
    agent: str
    run_id: UUID | None
    episode: str
    detail: str
    flow_run_id: UUID | None = None

    @property
    def subject_id(self) -> UUID | None:
        """The ID of the run or of the flow run."""
        return self.run_id or self.flow_run_id

    @property
    def key(self) -> tuple[UUID | None, str]:
        return self.subject_id, self.episode


def of_kind(rules: Sequence[AlertRule], *kinds: str) -> list[AlertRule]:
    """Return the rules of these kinds."""
    return [rule for rule in rules if rule.kind in kinds]


def checked_from(rule: AlertRule) -> datetime:
    """Return the time from which a rule considers events."""
    return max(rule.checked_at - OVERLAP, rule.created_at)
