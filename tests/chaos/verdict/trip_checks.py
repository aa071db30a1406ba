"""Checks of killed programs: the executed steps, the transcripts, and leftovers. May import the product.

The transcript of a trip equals an undisturbed one, without names, IDs and times. Calls of one answer have
no order, because they are executed at the same time.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Approval, RemoteStep, RunCommand
from runs.statuses import RunStatus
from tests.chaos.environment.program_lane import LaneTrip, ProgramLane, trip_of
from tests.chaos.programs import interface
from tests.chaos.programs.interface import CHECK_VISA, TOOLS
from tests.chaos.verdict.result import Result

Role = AgentRunMessage.Role
Line = Mapping[str, Any]
#: Parts that differ from run to run, and their replacement.
NAMES = [
    (re.compile(r"trip-[\d-]*\d"), "TRIP"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"aok_test_\w+"), "KEY"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)"), "TIME"),
]
#: The message of a resume, which no undisturbed trip has.
RESUMED = "continue"


@dataclass(frozen=True)
class TripTranscript:
    """The transcript of a trip or its child run."""

    status: str
    result: str
    #: Messages in order; an answer with its calls.
    messages: list[Any]
    tokens: tuple[int, int]


def transcript(lineage: Sequence[AgentRun]) -> TripTranscript:
    rows = [
        row
        for run in lineage
        for row in AgentRunMessage.objects.filter(run=run, rolled_back_at=None).order_by("position")
        if row.role != Role.TOOL_RESULT
    ]
    tokens = (sum(run.input_tokens for run in lineage), sum(run.output_tokens for run in lineage))
    shown = _in_order([[row.role, _texts(row), _calls(row)] for row in rows if _texts(row) != [RESUMED]])
    return TripTranscript(lineage[-1].status, _without_names(lineage[-1].result), _without_names(shown), tokens)


def _in_order(messages: list[list[Any]]) -> list[list[Any]]:
    """Return messages with those in an order of their own that have no text: waits, perhaps at the same time."""
    grouped = itertools.groupby(messages, key=lambda message: message[1] == [])
    return [message for is_wait, group in grouped for message in (sorted(group, key=repr) if is_wait else group)]


def _texts(row: AgentRunMessage) -> list[Any]:
    return [part.get("content") for part in row.content["parts"] if part["part_kind"] != "tool-call"]


def _calls(row: AgentRunMessage) -> list[Any]:
    calls = AgentRunToolCall.objects.filter(message=row)
    return sorted([call.tool_name, call.effect, call.status, call.input, call.output] for call in calls)


def _without_names(value: Any) -> Any:
    text = json.dumps(value)
    for pattern, name in NAMES:
        text = pattern.sub(name, text)
    return json.loads(text)


def differences(mine: TripTranscript, twin: TripTranscript) -> list[str]:
    found = []
    for number, (left, right) in enumerate(zip(mine.messages, twin.messages, strict=False), start=1):
        if left != right:
            found.append(f"message {number} is {json.dumps(left)[:600]}, its twin's {json.dumps(right)[:600]}")
            break
    if len(mine.messages) != len(twin.messages):
        found.append(f"it has {len(mine.messages)} messages, its twin {len(twin.messages)}")
    if (mine.status, mine.result) != (twin.status, twin.result):
        found.append(
            f"it is {mine.status} with {mine.result[:300]!r}, its twin {twin.status} with {twin.result[:300]!r}"
        )
    if mine.tokens != twin.tokens:
        found.append(f"it has used {mine.tokens} tokens, its twin {twin.tokens}")
    return found


# --- Executed steps ---


@dataclass(frozen=True)
class Executed:
    """The lines of the ledger about one step of a trip, and how a person has resolved it."""

    trip: str
    step: str
    lines: Sequence[Line]
    resolved: Sequence[str]

    def times(self, what: str) -> list[float]:
        return [line["at"] for line in self.lines if line["what"] == what]


def faults_of_step(executed: Executed, stored_at: float | None) -> list[str]:
    """Return the faults of a step. `stored_at`: when its outcome was stored; None for never."""
    begun, ended, effects = (executed.times(what) for what in ("begin", "end", "effect"))
    where = f"{executed.step} of {executed.trip}"
    found = []
    if stored_at is None:
        found.append(f"{where} began {len(begun)} times, and no outcome was stored")
    elif late := [at for at in begun if at > stored_at]:
        found.append(f"{where} was executed again {late[-1] - stored_at:.3f} s after its outcome was stored")
    tool = TOOLS.get(executed.step)
    if tool is None or tool.effect != "once":
        return found
    if len(effects) != 1:
        found.append(f"{where} had its effect {len(effects)} times")
    retries = executed.resolved.count("retry")
    if len(begun) > 1 + retries:
        found.append(f"{where} began {len(begun)} times, and a person has wanted {retries} retries")
    if len(begun) - len(ended) > len(executed.resolved):
        found.append(f"{where} was interrupted {len(begun) - len(ended)} times, a person asked {executed.resolved}")
    return found


def check_executed(lane: ProgramLane, result: Result) -> None:
    """Compare the ledger of a lane with the journals of its runs."""
    lines = lane.lines()
    stored = _stored(lane)
    for trip, step in sorted({(line["trip"], line["step"]) for line in lines if line["what"] != "struck"}):
        of_step = [line for line in lines if (line["trip"], line["step"]) == (trip, step)]
        executed = Executed(trip, step, of_step, lane.resolved.get((trip, step), []))
        for fault in faults_of_step(executed, stored.get((trip, step))):
            result.wrong("repeated" if "again" in fault else "effects", fault)
        _count(executed, result)
    for choices in lane.resolved.values():
        for choice in choices:
            result.operations[f"resolved as {choice}"] = result.operations.get(f"resolved as {choice}", 0) + 1


def _count(executed: Executed, result: Result) -> None:
    """Add a step to the figures of the report."""
    tool = TOOLS.get(executed.step)
    if tool is None:
        result.requests += len(executed.times("begin"))
        return
    for what in ("begin", "effect"):
        kind = f"{tool.effect} {what}"
        if count := len(executed.times(what)):
            result.effects[kind] = result.effects.get(kind, 0) + count


def _stored(lane: ProgramLane) -> dict[tuple[str, str], float]:
    """Return when the outcome of each step was stored: of tools by name, of model calls by number."""
    found: dict[tuple[str, str], float] = {}
    models: dict[str, int] = {}
    steps = RemoteStep.objects.filter(run__project=lane.project, finished_at__isnull=False)
    for step in steps.select_related("run").order_by("finished_at", "position"):
        trip, name = trip_of(step.run), interface.bare(step.name)
        if step.kind == RemoteStep.Kind.MODEL:
            models[trip] = models.get(trip, 0) + 1
            name = f"model:{models[trip]}"
        assert step.finished_at is not None
        found.setdefault((trip, name), step.finished_at.timestamp())
    return found


# --- Transcripts and leftovers ---


def check_trip(trip: LaneTrip, twins: Mapping[str, TripTranscript], waits: Collection[str], result: Result) -> None:
    """Compare a trip and its child run with the undisturbed ones. `twins`: by agent."""
    lineage = trip.lineage
    if not lineage:
        return  # reported by the liveness check
    subjects = {"trip": lineage}
    if CHECK_VISA in waits:
        children = list(AgentRun.objects.filter(parent_run__in=lineage))
        if len(children) != 1:
            result.wrong("trees", f"{trip.name} has {len(children)} child runs")
        subjects["visa"] = children[-1:]
    for agent, runs in subjects.items():
        if runs and runs[-1].state.terminal:
            result.compared += 1
            for found in differences(transcript(runs), twins[agent]):
                result.wrong("parity", f"{agent} of {trip.name}: {found}")


def check_left(lane: ProgramLane, result: Result) -> None:
    """Check that no run, request to a person or command is left behind."""
    for run in lane.runs:
        if run.state not in (RunStatus.COMPLETED, RunStatus.RESUMED):
            result.wrong("left", f"{trip_of(run)} is {run.status} ({run.status_reason})")
    left: Iterable[Any] = [
        *Approval.objects.filter(run__project=lane.project, state=Approval.State.PENDING),
        *RunCommand.objects.filter(run__project=lane.project, applied_at=None),
        *RemoteStep.objects.filter(run__project=lane.project, finished_at=None),
    ]
    for row in left:
        result.wrong("left", f"{type(row).__name__} {row}")
