"""What a batch of live rows brings beside the rows: the facts of the run, and the call for its head."""

from __future__ import annotations

import pytest

from runs.pages.timeline import live_cards
from tests.support.factories import drive
from tests.support.pages.timelines import recorded, told
from timeline import log
from timeline.live.rendering import ROWS

pytestmark = pytest.mark.django_db(transaction=True)


def test_facts_come_once_with_a_batch_and_the_head_is_called_by_moves_of_the_run() -> None:
    run = drive(recorded("claude-code-5c"))

    pieces = live_cards.render(run.pk, log.read(run.pk))

    assert sum('<dl id="facts"' in piece.get(ROWS, "") for piece in pieces) == 1
    assert '<dl id="facts" class="facts" data-progress="5 2 completed" hx-swap-oob="true">' in pieces[-1][ROWS]
    told_status = [piece["status"] for piece in pieces if "status" in piece]
    assert told_status == ["queued", "running", "completed"]


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_a_command_calls_for_the_head_too() -> None:
    run = recorded("claude-code-5c")
    told(run, "command.received", {"type": "pause", "by": "ada"})

    [*_, piece] = live_cards.render(run.pk, log.read(run.pk))

    assert piece["status"] == "queued"
