"""Appends with precomputed sequence numbers store the same rows as `log.append`."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from tests.support.factories import make_log
from timeline import log
from timeline.events.llm import MessageAdded
from timeline.events.run import RunPhase
from timeline.log import Entry
from timeline.models import Event, Log, Phase, RunKind, Source
from timeline.numbered import append_numbered

pytestmark = pytest.mark.django_db

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
COLUMNS = (
    "seq",
    "ref_id",
    "event_id",
    "run_kind",
    "phase",
    "type",
    "step",
    "node_id",
    "payload",
    "source",
    "epoch",
    "late",
    "sanitized",
)


def entries(ref: Log) -> list[Entry]:
    """Return entries with every column set, with each character that COPY treats specially, and with secrets."""
    digest = sha256(b"a").digest()
    at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    odd = 'tab\t line\n return\r quote" back\\slash \\N \\. \u2028 \U0001f600'
    return [
        Entry(RunPhase(status="running"), step=7, ref_id=ref.pk, node_id="n\\t", phase=Phase.QUEUED, ts=at, late=True),
        Entry({"text": odd, "n": [1, 2.5, None, True, {"a\\b": "c"}]}, type="x.odd", event_id="a", body_sha256=digest),
        Entry({"text": f"token {SECRET} and \0"}, type="x.secret", replaced=frozenset({"surrogate"})),
        Entry(MessageAdded(role="user", preview="an unmasked [REDACTED:"), clean=True),
        Entry({}, type="x.empty"),
    ]


def stored(ledger: Log) -> list[dict[str, Any]]:
    return list(Event.objects.filter(log=ledger).order_by("seq").values(*COLUMNS))


@pytest.mark.parametrize("extra", [[], [Entry({"text": "half a pair \ud800"}, type="x.surrogate")]])
def test_the_same_rows_are_stored_as_by_append(extra: list[Entry]) -> None:
    one, other = make_log(), make_log()
    batch = [*entries(one), *extra]
    with transaction.atomic():
        log.append(one.pk, batch, source=Source.INGEST, run_kind=RunKind.JOB)
        first = log.lock(other.pk) + 1
        append_numbered(other.pk, first, batch, source=Source.INGEST, run_kind=RunKind.JOB)

    assert stored(other) == stored(one)
    assert SECRET not in str(stored(other))
    new = Event.objects.filter(log=other).order_by("seq")
    assert [bytes(event.body_sha256 or b"") for event in new][1] == sha256(b"a").digest()
    assert new[0].ts == datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    other.refresh_from_db()
    assert (other.last_seq, other.last_event_at) == (len(batch), new[0].created_at)
    assert new[1].ts == new[1].created_at


@pytest.mark.parametrize("more", [0, 10])
def test_a_known_event_id_is_refused_and_nothing_is_stored(more: int) -> None:
    ledger = make_log()
    others = [Entry({}, type="x.other") for _ in range(more)]
    again = [*others, Entry({}, type="x.again", event_id="a")]
    with transaction.atomic():
        append_numbered(ledger.pk, 1, again, source=Source.INGEST, run_kind=RunKind.SESSION)

    with pytest.raises(IntegrityError), transaction.atomic():
        append_numbered(ledger.pk, len(again) + 1, again, source=Source.INGEST, run_kind=RunKind.SESSION)

    ledger.refresh_from_db()
    assert ledger.last_seq == len(stored(ledger)) == more + 1
