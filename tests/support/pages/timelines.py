"""Runs for timeline tests: real ones, and logs with arbitrary events.

May import the product's builders and its ledger.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.template.loader import render_to_string

from runs.models import AgentRun
from runs.pages.timeline import live_cards, window
from tests.support.factories import make_agent, make_run
from tests.support.pages.parsed_page import Page
from tests.support.processes.scripted_model import PLAYS, Play
from timeline import log
from timeline.log import Entry
from timeline.models import Event, Log, Source

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


def painted(run: AgentRun, upto: int | None = None, **query: Any) -> Page:
    """Return the timeline of the run's page as of sequence number `upto`."""
    return Page(f'<dl id="facts"></dl><ol id="timeline">{painted_html(run, upto, **query)}</ol>')


def painted_html(run: AgentRun, upto: int | None = None, **query: Any) -> str:
    last = upto if upto is not None else run.log.last_seq
    return of_window(window.newest(run.pk, last, **query))


def of_window(shown: window.Window) -> str:
    return render_to_string("timeline/_rows.html", {"items": shown.items})


def live(run: AgentRun, after: int, *, batch: int = 200) -> list[str]:
    """Return the messages that a reader at seq `after` receives, one per batch of events."""
    messages = []
    while events := log.read(run.pk, after=after, limit=batch):
        pieces = live_cards.render(run.pk, events)
        assert len(pieces) == len(events)
        messages.append("".join(piece.get("rows", "") for piece in pieces))
        after = events[-1].seq
    return messages
