"""A page that was painted early and followed live shows what a page painted late shows."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pydantic_ai.messages import TextPart, ThinkingPart

from runs.models import AgentRun
from runs.pages.timeline import live_cards, window
from runs.providers.base import ModelCall
from tests.support.factories import drive
from tests.support.pages.parsed_page import Page
from tests.support.pages.timelines import live, painted, recorded, scripted, told
from tests.support.processes.scripted_model import PIECE, Move, Play
from timeline import log
from timeline.live.rendering import ROWS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_retries")]


def followed(run: AgentRun, cut: int, *, batch: int = 200) -> Page:
    page = painted(run, cut)
    for message in live(run, cut, batch=batch):
        page.receive(message)
    return page


@pytest.mark.parametrize(("name", "apart"), [("claude-code-5c", 1), ("claude-code-7e", 13), ("claude-code-b6", 700)])
def test_it_shows_the_same_from_any_cut(name: str, apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "ROWS", 10_000)
    run = drive(recorded(name))
    last = run.log.last_seq
    wanted = painted(run).seen()

    for cut in [*range(0, last, apart), last]:
        page = followed(run, cut)

        assert page.seen() == wanted, f"painted up to {cut}"
        assert [row.id for row in page.rows] == list(wanted), f"order, painted up to {cut}"


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_it_shows_the_same_in_batches_of_any_size(batch: int) -> None:
    run = drive(recorded("claude-code-5c"))

    assert followed(run, 0, batch=batch).seen() == painted(run).seen()


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
def test_an_answer_is_shown_once(answer: Play, told_as: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is in the log and in its row, and it is the result of its run; the card alone shows it, also where the
    page is filtered or loaded again."""
    monkeypatch.setattr("runs.engine.model_stream.FLUSH_S", 0.01)
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
        assert followed(run, cut).seen() == wanted, f"painted up to {cut}"


def test_a_message_may_hold_the_pieces_of_several_batches_and_begin_within_one() -> None:
    """As timeline.live sends them: what follows a reader's cursor, whatever was rendered together."""
    run = drive(recorded("claude-code-5c"))
    events = log.read(run.pk)
    pieces = [piece for start in range(0, len(events), 9) for piece in live_cards.render(run.pk, events[start:][:9])]
    wanted = painted(run).seen()

    for cut in range(0, len(events), 3):
        page = painted(run, cut)
        page.receive("".join(piece.get(ROWS, "") for piece in pieces[cut:]))

        assert page.seen() == wanted, f"painted up to {cut}"


def broken(call: ModelCall) -> Iterable[Move]:
    """Thinks, begins to speak, breaks off twice, and then answers."""
    yield ThinkingPart("First I think about it. " * 30)
    # Long pauses: however busy the machine is, some of it is logged before the line breaks.
    for _piece in range(4):
        yield from [PIECE * 2, 0.15]
    tries.append(call.number)
    if len(tries) < 3:
        yield ConnectionError("the line went dead")
    yield "And that is all."


tries: list[int] = []


def test_streams_that_break_off_are_told_the_same_from_any_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.engine.model_stream.FLUSH_S", 0.05)
    tries.clear()
    run = drive(scripted(broken))
    types = [event.type for event in log.read(run.pk)]
    assert types.count("llm.turn.abandoned") == 2
    assert types.count("llm.text.delta") >= 3
    wanted = painted(run).seen()

    abandoned = [text for id_, (text, _) in wanted.items() if id_.startswith("abandoned-")]
    assert len(abandoned) == 2
    assert all("The model thinks aloud" in text and "abandoned: no_internet" in text for text in abandoned)
    assert "attempt 3" in wanted["turn-1"][0]
    for cut in range(0, len(types) + 1, 2):
        for batch in (2, 3, 200):
            assert followed(run, cut, batch=batch).seen() == wanted, f"painted up to {cut}, batches of {batch}"


def test_an_open_answer_shows_what_has_come_and_goes_on_from_there() -> None:
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
        assert followed(run, cut).seen() == wanted, f"painted up to {cut}"


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_an_external_runner_that_keeps_no_rows_is_told_the_same_from_any_cut() -> None:
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
            assert followed(run, cut, batch=batch).seen() == wanted, f"painted up to {cut}, batches of {batch}"


def test_facts_come_once_with_a_batch_and_the_head_is_called_by_moves_of_the_run() -> None:
    run = drive(recorded("claude-code-5c"))

    pieces = live_cards.render(run.pk, log.read(run.pk))

    assert sum('<dl id="facts"' in piece.get(ROWS, "") for piece in pieces) == 1
    assert '<dl id="facts" class="facts" hx-swap-oob="true">' in pieces[-1][ROWS]
    told_status = [piece["status"] for piece in pieces if "status" in piece]
    assert told_status == ["queued", "running", "completed"]


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_a_command_calls_for_the_head_too() -> None:
    run = recorded("claude-code-5c")
    told(run, "command.received", {"type": "pause", "by": "ada"})

    [*_, piece] = live_cards.render(run.pk, log.read(run.pk))

    assert piece["status"] == "queued"
