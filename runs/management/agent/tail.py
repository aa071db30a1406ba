"""`agentops agent tail`: print the events of a run: lines on a terminal, rows in a pipe, or JSON.

Secrets are masked.
"""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder

from agentops.accounts.management.base import EXIT_INTERRUPTED, AgentopsCommand, printable
from runs.management.agent.references import find_run
from runs.management.agent.run_state import refresh, require_completed
from runs.management.agent.run_table import shorten
from runs.models import AgentRun, FlowRun
from runs.statuses import LIVE, RunStatus
from timeline import events, log, outgoing
from timeline.events import EventType
from timeline.models import Event

LOOK_EVERY_S = 0.25
BATCH = 200
DELTAS = frozenset({EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA})
TYPE_WIDTH = 20
INDENT = " " * (len("12:03:07Z  step 999  ") + TYPE_WIDTH + 2)

Write = Callable[[str], object]


def tail(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run(options["run"])
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
            for event in outgoing.mask_events(batch):
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
    """Yield the events after seq `after`, and new ones until the log is no longer live."""
    while True:
        # Read before the events: if the log is not live by then, the events are complete.
        goes_on = is_live()
        while batch := log.read(log_id, after=after, limit=BATCH):
            yield batch
            after = batch[-1].seq
        if not goes_on:
            return
        time.sleep(LOOK_EVERY_S)


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
            self._write(_flowing(_event_text(event)))
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
    about = payload.get("preview") or payload.get("arguments") or payload.get("error") or ""
    text = about if isinstance(about, str) else json.dumps(about, ensure_ascii=False)
    return f"{events.describe(event.type, payload)}{': ' if text else ''}{shorten(text)}"


def _flowing(text: str) -> str:
    """Return the text indented below the margin, with control characters replaced."""
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return f"\n{INDENT}".join("".join(_harmless(character) for character in line) for line in lines)


def _harmless(character: str) -> str:
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in {"Cc", "Cs"} else character
