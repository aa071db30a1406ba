"""`agentops run tail` and `agentops replay`: print the events of a run, for people, as rows for a pipe, or as JSON.

A replay prints the stored events at their recorded pace, each with the resulting state. Secrets are masked.
"""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder

from agentops.accounts.command_base import EXIT_INTERRUPTED, AgentopsCommand, printable
from runs.flows.kernel.snapshot import NodeStatus
from runs.management.agent.references import find_run, find_run_or_flow_run
from runs.management.agent.run_table import refresh, require_completed, shorten
from runs.models import AgentRun, FlowRun
from runs.queries import replay_states
from runs.queries.flow_states import FlowReplay, FlowReplayState
from runs.queries.json_columns import mask_rows, to_json
from runs.queries.replay_states import MAX_PAUSE_S, ReplayState
from runs.statuses import LIVE, RunStatus
from timeline import events, log, reading
from timeline.events import EventType
from timeline.models import Event, Log

#: Seconds between two looks for new events.
POLL_S = 0.25
#: Events read at a time.
BATCH = 200
DELTAS = frozenset({EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA})
TYPE_WIDTH = 20
#: As wide as `_margin`.
INDENT = " " * (len("12:03:07Z  step 999  ") + TYPE_WIDTH + 2)

Write = Callable[[str], object]


def tail(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run(options["run"], options["project"])
    write_log(command, run, options)
    if options["follow"]:
        require_completed(refresh(run))


def write_log(command: AgentopsCommand, run: AgentRun | FlowRun, options: dict[str, Any]) -> None:
    """Print the events of a run after `options["after"]`, and with `follow` new ones while it is live."""
    statuses = type(run).objects.filter(pk=run.pk).values_list("status", flat=True)

    def is_live() -> bool:
        return options["follow"] and RunStatus(statuses.get()) in LIVE

    screen = Screen(partial(command.stdout.write, ending=""))
    line = json_line if options["json"] else row
    pretty = command.stdout.isatty() and not options["json"]
    try:
        for batch in batches(run.pk, options["after"], is_live):
            for event in reading.mask_events(batch):
                if pretty:
                    screen.show(event)
                else:
                    command.stdout.write(line(event))
            command.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        screen.end_line()


def batches(log_id: UUID, after: int, is_live: Callable[[], bool]) -> Iterator[list[Event]]:
    """Yield the events after seq `after`, and new ones until the run is no longer live."""
    while True:
        # Read before the events: if the run was not live then, they are complete.
        was_live = is_live()
        while batch := log.read(log_id, after=after, limit=BATCH):
            yield batch
            after = batch[-1].seq
        if not was_live:
            return
        time.sleep(POLL_S)


def json_line(event: Event) -> str:
    """Return the event as in the API, with all characters except printable ASCII escaped."""
    return json.dumps(log.wire(event), cls=DjangoJSONEncoder)


def row(event: Event) -> str:
    """Return seq, time, step, type and message, separated by tabs."""
    cells = (event.seq, f"{event.ts:%Y-%m-%dT%H:%M:%S.%fZ}", event.step, event.type, _event_text(event))
    return "\t".join(printable(cell) for cell in cells)


class Screen:
    """Writes events to a terminal, one per line. Consecutive deltas of a text continue on the same line."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._part: tuple[object, ...] | None = None

    def show(self, event: Event) -> None:
        part = (event.type, event.step, event.payload.get("index")) if event.type in DELTAS else None
        if part is None or part != self._part:
            self.end_line()
            self._write(_margin(event))
        if part is None:
            self._write(f"{printable(_event_text(event))}\n")
        else:
            self._write(_indented(_event_text(event)))
        self._part = part

    def end_line(self) -> None:
        if self._part is not None:
            self._write("\n")
        self._part = None


def _margin(event: Event) -> str:
    step = f"step {event.step}" if event.step is not None else ""
    return f"{event.ts:%H:%M:%SZ}  {step:<8}  {printable(event.type):<{TYPE_WIDTH}}  "


def _event_text(event: Event) -> str:
    """Return the sentence of an event and a preview of its content; for a delta, its text."""
    payload = event.payload
    if event.type in DELTAS:
        return str(payload.get("text") or "")
    content = payload.get("preview") or payload.get("arguments") or payload.get("error") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return f"{events.describe(event.type, payload)}{': ' if text else ''}{shorten(text)}"


def _indented(text: str) -> str:
    """Return the text indented below the margin, with control characters replaced."""
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return f"\n{INDENT}".join("".join(map(_printable_character, line)) for line in lines)


def _printable_character(character: str) -> str:
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in {"Cc", "Cs"} else character


State = ReplayState | FlowReplayState


@dataclass
class Pace:
    """The pauses of a replay: as recorded, divided by the speed. Long pauses are shortened."""

    #: None to replay without pauses.
    speed: int | None
    #: The time of the previous event.
    previous_at: datetime | None = None
    #: The number of shortened pauses.
    shortened: int = 0

    def pause_before(self, event: Event) -> float:
        """Return the seconds to wait before this event."""
        previous_at, self.previous_at = self.previous_at, event.ts
        if previous_at is None or self.speed is None:
            return 0.0
        [pause_s] = replay_states.pauses_s([previous_at, event.ts])
        self.shortened += (event.ts - previous_at).total_seconds() > MAX_PAUSE_S
        return pause_s / self.speed


def replay(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run_or_flow_run(options["run"])
    last_seq = Log.objects.values_list("last_seq", flat=True).get(pk=run.pk)
    end = min(options["end"] or last_seq, last_seq)
    pace = Pace(None if options["at_once"] else options["speed"])
    line = _json_line if options["json"] else _text_line
    try:
        for event, state in _states(run, options["begin"], end):
            if pause_s := pace.pause_before(event):
                command.stdout.flush()
                time.sleep(pause_s)
            command.stdout.write(line(event, state))
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    if pace.shortened:
        subject, verb = ("1 pause", "was") if pace.shortened == 1 else (f"{pace.shortened} pauses", "were")
        limit = f"{MAX_PAUSE_S:.0f} s"
        command.stderr.write(f"agentops: {subject} of more than {limit} {verb} shortened to {limit}")


def _states(run: AgentRun | FlowRun, begin: int, end: int) -> Iterator[tuple[Event, State]]:
    """Yield the events from `begin` to `end` with the resulting states. The log is read in batches and folded once."""
    after = max(begin - 1, 0)
    advance = _replay_after(run, after)
    while after < end and (batch := log.read(run.pk, after=after, limit=min(BATCH, end - after))):
        after = batch[-1].seq
        states = [state for _, state in advance(batch)]
        # After the fold: masking changes the payloads.
        yield from zip(reading.mask_events(batch), states, strict=True)


def _replay_after(run: AgentRun | FlowRun, after: int) -> Callable[[list[Event]], Iterator[tuple[Event, State]]]:
    """Return a function that yields each event of the next batch with the state after it, from event `after` on."""
    if isinstance(run, FlowRun):
        return FlowReplay(run, after).continued
    return partial(replay_states.continued, replay_states.frame_at(run.pk, after))


def _json_line(event: Event, state: State) -> str:
    """Return the event as in the API, with all characters except printable ASCII escaped."""
    [masked] = mask_rows([to_json({**log.wire(event), "state": state.as_json()})])
    return json.dumps(json.loads(masked))


def _text_line(event: Event, state: State) -> str:
    """Return the event as `run tail` prints it, with the main facts of the resulting state."""
    return f"{row(event)}\t{printable(_facts(state))}"


def _facts(state: State) -> str:
    """Return status, messages, open calls and tokens of a run; of a flow run, its status and its nodes."""
    if isinstance(state, FlowReplayState):
        running = ", ".join(state.nodes(NodeStatus.RUNNING)) or "none"
        return f"{state.status}, {len(state.nodes(NodeStatus.DONE))} nodes done, running: {running}"
    tokens = state.tokens["input_tokens"] + state.tokens["output_tokens"]
    return f"{state.status}, {state.message_count} messages, {len(state.open_calls)} open calls, {tokens} tokens"
