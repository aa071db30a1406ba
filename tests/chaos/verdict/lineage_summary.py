"""The summary of a lineage without data that differs from run to run, as the basis of parity.

May import the product. Equal summaries have the same messages in the same order, the same calls with the same inputs
and outcomes, the same tokens per turn, and the same result. A summary omits:

- IDs (also of child runs), times, positions (a rolled-back turn keeps its positions), attempts and starts,
  failed model calls;
- which run of the lineage has a message, because a pause may come between any two steps;
- user turns of people (`note …`, and the `continue` of a resume), which the model ignores. One that arrives after the
  last answer makes the model answer again. A summary may therefore end with one more answer for each message from
  people, and with scripted turns after those, each with one more answer.

A call of unknown outcome is included: the operator resolves it from the ledger, so it ends with its output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, TurnUsage
from runs.statuses import ToolStatus
from tests.chaos.environment.deterministic_model import outside, without_ids
from tests.support.run_checks import plain
from timeline.models import Event

Role = AgentRunMessage.Role


@dataclass(frozen=True)
class LineageSummary:
    status: str
    result: str
    messages: list[Any]
    calls: list[Any]
    #: Tokens by step.
    turns: dict[int, Any]
    #: User turns of people.
    notes: list[str]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps([self.messages, self.calls, self.result]).encode()).hexdigest()


def lineage(root: AgentRun) -> list[AgentRun]:
    """Return the runs of the root's lineage, oldest first."""
    return list(AgentRun.objects.filter(root_run=root.root_run_id).order_by("step_base", "created_at"))


def tell(runs: list[AgentRun]) -> LineageSummary:
    rows = [row for run in runs for row in _active(run)]
    notes = [str(_text(row)) for row in rows if row.role == Role.USER and outside(_text(row))]
    kept = [row for row in rows if not (row.role == Role.USER and outside(_text(row)))]
    calls = AgentRunToolCall.objects.filter(message__in=[row.pk for row in rows]).order_by("step_number", "id")
    return LineageSummary(
        status=runs[-1].status,
        result=runs[-1].result,
        messages=without_ids([_message(row) for row in kept]),
        calls=without_ids(
            [[c.step_number, c.call_id, c.tool_name, c.input, c.status, c.effect, c.output] for c in calls]
        ),
        turns=_turns(runs),
        notes=notes,
    )


def differences(summary: LineageSummary, twin: LineageSummary) -> list[str]:
    """List the differences between a summary and the summary of its undisturbed twin."""
    found = []
    if summary.status != twin.status:
        found.append(f"it is {summary.status}, its twin {twin.status}")
    found += _first_difference("message", summary.messages, twin.messages, surplus=len(summary.notes))
    found += _first_difference("call", summary.calls, twin.calls)
    for step, used in twin.turns.items():
        if summary.turns.get(step) != used:
            found.append(f"step {step} has used {summary.turns.get(step)}, its twin's {used}")
    if not summary.notes and summary.result != twin.result:
        found.append(f"its result is {summary.result[:80]!r}, its twin's {twin.result[:80]!r}")
    return found


def closed_by_a_pause(runs: Iterable[AgentRun]) -> bool:
    """Return whether a pause by a person closed calls of a waiting run. No undisturbed twin does that."""
    paused = Event.objects.filter(log__in=[r.pk for r in runs], type="run.paused", payload__reason="operator")
    ended = [ToolStatus.UNKNOWN, ToolStatus.DENIED]
    return AgentRunToolCall.objects.filter(
        run__in=paused.values("log"), status__in=ended, result_message__isnull=False, message__rolled_back_at=None
    ).exists()


def _active(run: AgentRun) -> list[AgentRunMessage]:
    return list(AgentRunMessage.objects.filter(run=run, rolled_back_at=None).order_by("position"))


def _text(row: AgentRunMessage) -> Any:
    return row.content["parts"][0].get("content")


def _message(row: AgentRunMessage) -> list[Any]:
    step = row.step_number if row.role in (Role.ASSISTANT, Role.TOOL_RESULT) else None
    return [row.role, step, plain(row.content)]


def _turns(runs: list[AgentRun]) -> dict[int, Any]:
    """Return the usage by step; for a step that was rolled back and repeated, the newest."""
    of_answers = [TurnUsage.Outcome.ANSWERED, TurnUsage.Outcome.ROLLED_BACK]
    used = TurnUsage.objects.filter(run__in=runs, outcome__in=of_answers).order_by("id")
    return {turn.step_number: [turn.model, turn.input_tokens, turn.output_tokens] for turn in used}


def _first_difference(what: str, mine: list[Any], theirs: list[Any], surplus: int = 0) -> list[str]:
    for number, (left, right) in enumerate(zip(mine, theirs, strict=False), start=1):
        if left != right:
            return [f"{what} {number} is {json.dumps(left)[:400]}, its twin's {json.dumps(right)[:400]}"]
    more = mine[len(theirs) :]
    roles = [row[0] for row in more]
    # The script may continue after an answer that a person's message caused.
    answers, scripted = roles.count(Role.ASSISTANT), roles.count(Role.USER)
    is_excess = bool(more) and (not surplus or answers > surplus + scripted or answers + scripted < len(more))
    if len(mine) < len(theirs) or is_excess:
        told = f"it has {len(mine)} {what}s, its twin {len(theirs)}; people spoke {surplus} times"
        return [f"{told}; more: {json.dumps(more)[:800]}"]
    return []
