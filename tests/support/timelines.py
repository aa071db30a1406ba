"""Runs for the tests of timelines and streams: recorded, scripted or arbitrary logs, and logs that grow.

Also a run with a reader and the URLs of its streams, and an event that PostgreSQL commits later than its successors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.template.loader import render_to_string
from pydantic_ai.messages import ModelResponse

from agentops.accounts.models import Project, Role
from runs.conversation import transcript
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunMessage
from runs.pages.timeline import live_cards, window
from runs.statuses import RunStatus
from tests.support.factories import make_agent, make_person, make_project, make_run, signed_in
from tests.support.pages import ParsedPage
from tests.support.scripted_model import PLAYS, Play
from tests.support.stream_clients import Follower, Listeners
from timeline import log
from timeline.events.run import RunStopped
from timeline.log import Entry
from timeline.models import Event, Log, Source
from timeline.tombstones import allow_changes

RECORDINGS = ["claude-code-5c", "claude-code-7e", "claude-code-b6"]
_numbers = itertools.count(1)


def recorded(name: str) -> AgentRun:
    """Create a queued run that plays a recording."""
    return make_run(make_agent(fixture=name))


def scripted(play: Play, **agent: Any) -> AgentRun:
    """Create a queued run whose model makes the moves of `play`."""
    name = f"page-play-{next(_numbers)}"
    PLAYS[name] = play
    settings = {"play": name} | agent.pop("settings", {})
    made = make_agent(provider="scripted", model="scripted-model", settings=settings, tools=[], **agent)
    return make_run(made, "Go.")


def told(run: AgentRun, type_: str, payload: Mapping[str, Any] | None = None, **entry: Any) -> int:
    """Append an event as an external runner does. Return its seq."""
    with transaction.atomic():
        [stored] = log.append(run.pk, [Entry(payload or {}, type=type_, **entry)], source=Source.INGEST)
    return stored.seq


def stored(run: AgentRun, type_: str, payload: Any, **columns: Any) -> int:
    """Store an event without validation, as an older version may have stored it. Return its seq."""
    known = {"source": Source.INGEST, "phase": "running", "ts": run.created_at, "created_at": run.created_at}
    seq = Log.objects.values_list("last_seq", flat=True).get(pk=run.pk) + 1
    Event(log_id=run.pk, seq=seq, type=type_, payload=payload, **(known | columns)).save(force_insert=True)
    Log.objects.filter(pk=run.pk).update(last_seq=seq)
    return seq


def painted(run: AgentRun, upto: int | None = None, **query: Any) -> ParsedPage:
    """Return the timeline of the run's page as of sequence number `upto`."""
    return ParsedPage(f'<dl id="facts"></dl><ol id="timeline">{painted_html(run, upto, **query)}</ol>')


def painted_html(run: AgentRun, upto: int | None = None, **query: Any) -> str:
    last = upto if upto is not None else run.log.last_seq
    return of_window(window.newest(run.pk, last, **query))


def of_window(shown: window.Window) -> str:
    return render_to_string("timeline/_rows.html", {"items": shown.items})


def live_messages(run: AgentRun, after: int, *, batch: int = 200) -> list[str]:
    """Return the messages that a reader at seq `after` receives, one per batch of events."""
    messages = []
    while events := log.read(run.pk, after=after, limit=batch):
        pieces = live_cards.render(run.pk, events)
        assert len(pieces) == len(events)
        messages.append("".join(piece.get("rows", "") for piece in pieces))
        after = events[-1].seq
    return messages


Speaker = AgentRunMessage.Role


def add(run: AgentRun, message: Any, *, role: str = Speaker.ASSISTANT, step: int = 1) -> AgentRunMessage:
    """Add a message with its event to the conversation. Return its row."""
    position = run.messages.count() + 1
    row, _ = transcript.new_row(run.pk, position, message, role=role, step=step, epoch=None)
    row.save(force_insert=True)
    told(
        run,
        "message.added",
        transcript.message_event(row).payload.model_dump(exclude_defaults=True),
        step=step,
        ref_id=row.pk,
    )
    return row


def answer(run: AgentRun, *parts: Any, step: int = 1) -> AgentRunMessage:
    told(run, "llm.turn.start", {"model": "m"}, step=step)
    return add(run, ModelResponse(parts=list(parts), model_name="m"), step=step)


def grow(run: AgentRun, count: int = 1, *, size: int = 0, text: str | None = None) -> int:
    """Append `count` events in one transaction, each with `text` or with `size` characters. Return the last seq."""
    entries = [
        Entry({"n": number, "text": "x" * size if text is None else text}, type="x.test", clean=True)
        for number in range(count)
    ]
    with transaction.atomic():
        return log.append(run.pk, entries, source=Source.INGEST)[-1].seq


def finish(run: AgentRun) -> int:
    """Stop the run. Return the seq of its terminal event."""
    transitions.move(run, RunStatus.STOPPED, RunStopped(reason="operator"), source=Source.WEB, reason="operator")
    return last_seq(run)


def last_seq(run: AgentRun) -> int:
    return Log.objects.get(pk=run.pk).last_seq


def rewind(run: AgentRun, to: int) -> None:
    """Delete the events after seq `to`, as a restored backup would."""
    with allow_changes("test: a restored backup"):
        Event.objects.filter(log=run.pk, seq__gt=to).delete()
        Log.objects.filter(pk=run.pk).update(last_seq=to)


_APPEND = "SELECT seq FROM timeline_append(%s, NULL, 'ingest', 'session', %s::jsonb, false)"
_ENTRY = (
    '[{{"type": "x.note", "phase": "running", "payload": {{"text": "{}"}}, "node_id": "", "sanitized": "", '
    '"late": false, "event_id": null, "ts": null, "step": null}}]'
)


@contextmanager
def appended_late(run: AgentRun, text: str) -> Iterator[None]:
    """Append an event, and commit it at the end of the block."""
    database = settings.DATABASES["default"]
    with psycopg.connect(
        dbname=connection.settings_dict["NAME"],
        host=database["HOST"],
        port=database["PORT"] or None,
        user=database["USER"],
        password=database["PASSWORD"] or None,
    ) as writer:
        writer.execute(_APPEND, [run.pk, _ENTRY.format(text)])
        yield


@dataclass
class StreamedRun:
    """A run on a server, and its reader."""

    web: Any
    listeners: Listeners
    project: Project = field(default_factory=make_project)

    def __post_init__(self) -> None:
        self.run: AgentRun = make_run(make_agent(self.project))
        self.reader: User = make_person(self.project, Role.VIEWER)
        self.cookie = signed_in(self.reader)

    @property
    def url(self) -> str:
        """The URL of the JSON stream."""
        return f"{self.web.url}/api/projects/{self.project.slug}/agent-runs/{self.run.pk}/events/stream"

    @property
    def page_url(self) -> str:
        """The URL of the HTML stream that the run's page follows."""
        return f"{self.web.url}/runs/{self.run.pk}/stream"

    def open(self, query: str = "", headers: dict[str, str] | None = None, **options: Any) -> Follower:
        return self.listeners.open(self.url + query, self.cookie | (headers or {}), **options)
