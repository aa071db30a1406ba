"""Test that a page loaded early and updated live equals a page loaded late.

The product's script places the rows in a browser.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser
from pydantic_ai.messages import TextPart, ThinkingPart

from agentops.accounts.models import Role
from runs.pages.timeline import live_cards, window
from runs.providers.base import ModelCall
from tests.support.browser import LiveTimeline
from tests.support.factories import drive, make_agent, make_person, make_run, make_waiting
from tests.support.scripted_model import PIECE, Move, Play
from tests.support.timelines import answer, live_messages, painted, painted_html, recorded, scripted, stored, told
from timeline import log
from timeline.live.streams import ROWS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick_retries"),
]


@pytest.fixture
def timeline(chromium: Browser) -> Iterator[LiveTimeline]:
    timeline = LiveTimeline(chromium)
    yield timeline
    timeline.close()


@pytest.mark.parametrize(
    ("name", "apart"),
    [pytest.param("claude-code-5c", 1, marks=pytest.mark.smoke), ("claude-code-7e", 13), ("claude-code-b6", 700)],
)
def test_a_page_is_the_same_from_any_cut(
    timeline: LiveTimeline, name: str, apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "ROWS", 10_000)
    run = drive(recorded(name))
    last = run.log.last_seq
    wanted = painted(run).seen()

    for cut in [*range(0, last, apart), last]:
        page = timeline.follow(run, cut)

        assert page.seen() == wanted, f"painted up to {cut}"
        assert [row.id for row in page.rows] == list(wanted), f"order, painted up to {cut}"


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_a_page_is_the_same_with_batches_of_any_size(timeline: LiveTimeline, batch: int) -> None:
    run = drive(recorded("claude-code-5c"))

    assert timeline.follow(run, 0, batch=batch).seen() == painted(run).seen()


def in_chunks(_: ModelCall) -> Iterable[Move]:
    yield from [ThinkingPart("First I think."), "That ", 0.05, "is all."]


@pytest.mark.parametrize(
    ("answer", "told_as"),
    [
        (lambda _: [ThinkingPart("First I think."), TextPart("That is all.")], "llm.text"),
        (in_chunks, "llm.text.delta"),
    ],
    ids=["whole", "streamed"],
)
def test_an_answer_appears_once(
    timeline: LiveTimeline, answer: Play, told_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the text only on its card, also on a filtered or reloaded page.

    The log, the row and the result of the run all contain the text.
    """
    monkeypatch.setattr("runs.engine.turns.model_stream.FLUSH_S", 0.01)
    run = drive(scripted(answer))
    assert told_as in {event.type for event in log.read(run.pk)}
    run.refresh_from_db()
    assert run.summary == "That is all."
    wanted = painted(run).seen()

    for filtered in (wanted, painted(run, show=window.Show.MESSAGES).seen()):
        shown = " ".join(text for text, *_ in filtered.values())
        assert (shown.count("That is all."), shown.count("First I think.")) == (1, 1)
    assert not painted(run, show=window.Show.ERRORS).seen()
    for cut in range(run.log.last_seq + 1):
        assert timeline.follow(run, cut).seen() == wanted, f"painted up to {cut}"


def test_a_message_may_contain_several_batches_and_start_within_one(timeline: LiveTimeline) -> None:
    """Send messages like timeline.live: everything after a reader's cursor, regardless of how it was rendered."""
    run = drive(recorded("claude-code-5c"))
    events = log.read(run.pk)
    pieces = [piece for start in range(0, len(events), 9) for piece in live_cards.render(run.pk, events[start:][:9])]
    wanted = painted(run).seen()

    for cut in range(0, len(events), 3):
        page = timeline.receive(painted_html(run, cut), ["".join(piece.get(ROWS, "") for piece in pieces[cut:])])

        assert page.seen() == wanted, f"painted up to {cut}"


def broken(call: ModelCall) -> Iterable[Move]:
    """Think, start to answer, disconnect twice, and then answer."""
    yield ThinkingPart("First I think about it. " * 30)
    # Pauses are long, so that even on a busy machine some text is logged before the connection breaks.
    for _piece in range(4):
        yield from [PIECE * 2, 0.15]
    tries.append(call.number)
    if len(tries) < 3:
        yield ConnectionError("the line went dead")
    yield "And that is all."


tries: list[int] = []


def test_broken_streams_look_the_same_from_any_cut(timeline: LiveTimeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.engine.turns.model_stream.FLUSH_S", 0.05)
    tries.clear()
    run = drive(scripted(broken))
    types = [event.type for event in log.read(run.pk)]
    assert types.count("llm.turn.abandoned") == 2
    assert types.count("llm.text.delta") >= 3
    wanted = painted(run).seen()

    abandoned = [text for id_, (text, _) in wanted.items() if id_.startswith("abandoned-")]
    assert len(abandoned) == 2
    assert all("The model thinks aloud" in text and "abandoned: provider not reachable" in text for text in abandoned)
    assert "attempt 3" in wanted["turn-1"][0]
    for cut in range(0, len(types) + 1, 2):
        for batch in (2, 3, 200):
            assert timeline.follow(run, cut, batch=batch).seen() == wanted, f"painted up to {cut}, batches of {batch}"


def test_an_unfinished_answer_shows_its_text_and_continues(timeline: LiveTimeline) -> None:
    run = scripted(lambda _: [])
    told(run, "llm.turn.start", {"model": "m"}, step=1)
    for number in range(6):
        told(run, "llm.thinking.delta", {"text": f"thought {number} "}, step=1)
        told(run, "llm.text.delta", {"text": f"word {number} "}, step=1)
    run.log.refresh_from_db()
    last = run.log.last_seq
    wanted = painted(run).seen()

    assert "word 0 word 1 word 2 word 3 word 4 word 5" in wanted["turn-1"][0]
    assert "thought 0 thought 1" in wanted["turn-1"][0]
    for cut in range(last + 1):
        assert timeline.follow(run, cut).seen() == wanted, f"painted up to {cut}"


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_a_restarted_model_call_without_an_end_has_a_separate_card(timeline: LiveTimeline) -> None:
    run = scripted(lambda _: [])
    for text in ("I will look. ", "I look again. "):
        told(run, "llm.turn.start", step=1)
        told(run, "llm.text.delta", {"text": text}, step=1)
    told(run, "llm.turn.end", {"input_tokens": 7, "output_tokens": 3, "model": "m"}, step=1)
    run.log.refresh_from_db()
    wanted = painted(run).seen()

    assert len([id_ for id_ in wanted if id_.startswith("turn-1")]) == 2
    for cut in range(run.log.last_seq + 1):
        page = timeline.follow(run, cut)
        # A page that has shown the text of the first call keeps it.
        assert [row.id for row in page.rows] == list(wanted), f"order, painted up to {cut}"
        assert page.seen()["turn-1"] == wanted["turn-1"], f"painted up to {cut}"


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_events_of_a_runner_without_rows_look_the_same_from_any_cut(timeline: LiveTimeline) -> None:
    run = scripted(lambda _: [])
    told(run, "llm.turn.start", step=1)
    told(run, "llm.text.delta", {"text": "I will look. "}, step=1)
    told(run, "llm.turn.end", {"tool_calls": [{"id": "a", "name": "grep", "arguments": {"q": "x"}}]}, step=1)
    told(run, "tool.start", {"call_id": "a", "tool_name": "grep", "arguments": {"q": "x"}}, step=1)
    told(run, "tool.output", {"call_id": "a", "text": "line one\n"}, step=1)
    told(run, "tool.output", {"call_id": "a", "text": "line two\n"}, step=1)
    told(run, "tool.end", {"call_id": "a", "duration_ms": 12}, step=1)
    told(run, "llm.turn.start", step=2)
    told(run, "message.added", {"role": "assistant", "content": "Found it."}, step=2)
    told(run, "llm.turn.end", {"input_tokens": 7, "output_tokens": 0, "model": "m"}, step=2)
    told(run, "llm.text", {"text": "A block without a turn."})
    told(run, "tool.end", {"call_id": "b", "tool_name": "late", "error": "it broke"}, step=2)
    run.log.refresh_from_db()
    wanted = painted(run).seen()

    assert "I will look." in wanted["turn-1"][0]
    assert "Found it." in wanted["turn-2"][0]
    [grep] = [text for id_, (text, _) in wanted.items() if id_.startswith("call-x") and "grep" in text]
    assert "line one line two" in grep
    assert '"q": "x"' in grep
    for cut in range(run.log.last_seq + 1):
        for batch in (1, 4, 200):
            assert timeline.follow(run, cut, batch=batch).seen() == wanted, f"painted up to {cut}, batches of {batch}"


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_rolled_back_answers_are_struck_through_and_superseded(timeline: LiveTimeline) -> None:
    run = make_run(make_agent(), "Look into it.")
    first = answer(run, TextPart("The first answer."))
    seq = told(run, "llm.turn.end", {"model": "m"}, step=1, ref_id=first.pk)
    before = painted_html(run, seq)
    payload = {"reason": "on_crash", "positions": [first.position]}
    run.messages.filter(pk=first.pk).update(rolled_back_at=timezone.now())
    stored(run, "run.rolled_back", payload, source="worker")
    answer(run, TextPart("The second answer."))
    run.log.refresh_from_db()
    page = painted(run)

    assert timeline.receive(before, live_messages(run, seq)).seen() == page.seen()
    undone, again = page.element(f"rolled-back-{first.position}"), page.element("turn-1")
    assert "is-rolled-back" in undone.classes
    assert "The first answer." in undone.words
    assert "The second answer." in again.words


@pytest.mark.parametrize("choice", ["done", "retry"])
def test_the_card_of_an_unknown_outcome_updates_live(timeline: LiveTimeline, choice: str) -> None:
    """Apply each event to a page loaded just before it: the result equals a page loaded just after it."""
    run = make_waiting()
    operator = Client()
    operator.force_login(make_person(run.project, Role.OPERATOR))
    call = run.tool_calls.get(status="unknown")
    operator.post(f"/runs/{run.pk}/calls/{call.pk}/resolve", {"choice": choice})
    moves = [e.seq for e in log.events_of(run.pk) if e.type in ("run.waiting", "tool.outcome_resolved", "tool.end")]

    assert moves
    for seq in moves:
        pieces = live_cards.render(run.pk, log.read(run.pk, after=seq - 1, limit=1))
        page = timeline.receive(painted_html(run, seq - 1), [str(piece.get("rows", "")) for piece in pieces])
        assert page.seen()[f"call-{call.pk}"] == painted(run, seq).seen()[f"call-{call.pk}"]


def test_head_facts_that_repeat_are_announced_again(timeline: LiveTimeline) -> None:
    assert timeline.repeat("running, step 2") == ["running, step 2", "others", "running, step 2"]
