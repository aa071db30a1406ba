"""Test the additional content of live rows: the facts of the run, and the event that reloads the head."""

from __future__ import annotations

import pytest

from runs.pages.timeline import live_cards
from tests.support.factories import drive
from tests.support.timelines import recorded, told
from timeline import log
from timeline.live.streams import ROWS

pytestmark = pytest.mark.django_db(transaction=True)


def test_facts_are_sent_once_per_batch_and_status_changes_reload_the_head() -> None:
    run = drive(recorded("claude-code-5c"))

    pieces = live_cards.render(run.pk, log.read(run.pk))

    assert sum('<dl id="facts"' in piece.get(ROWS, "") for piece in pieces) == 1
    assert '<dl id="facts" class="facts" data-progress="5 2 completed" hx-swap-oob="true">' in pieces[-1][ROWS]
    told_status = [piece["status"] for piece in pieces if "status" in piece]
    assert told_status == ["queued", "running", "completed"]


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_a_command_reloads_the_head() -> None:
    run = recorded("claude-code-5c")
    told(run, "command.received", {"type": "pause", "by": "oscar"})

    [*_, piece] = live_cards.render(run.pk, log.read(run.pk))

    assert piece["status"] == "queued"
