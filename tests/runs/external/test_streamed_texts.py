"""A runner's deltas form one text: no secret is stored readable, however deltas, blocks and requests split it."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from agentops.accounts import redaction_changes
from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Project
from agentops.accounts.redaction_cache import CACHE
from agentops.base.redaction.redact import DEFAULT
from runs.conversation.transcript import text_of
from runs.external.ingest import EventResult, Sender, record
from runs.models import AgentRun, ExternalRun
from runs.upkeep import invariants, replay_check
from tests.support.factories import make_project
from tests.support.secret_samples import TRUE
from timeline import log
from timeline.models import Event

pytestmark = pytest.mark.django_db

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
MARK = DEFAULT.clean_text(SECRET)[0]


@pytest.fixture
def sender() -> Sender:
    return Sender(make_project("outside"), "key:test")


def event(type_: str, payload: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"runId": "r1", "type": type_, "payload": payload or {}, **fields}


def deltas(*texts: str, kind: str = "text") -> list[dict[str, Any]]:
    return [event(f"llm.{kind}.delta", {"text": text}) for text in texts]


def send(sender: Sender, *documents: object) -> list[EventResult]:
    results = record(sender, list(documents))
    assert [result.error for result in results if result.error] == []
    return results


def the_run() -> AgentRun:
    return AgentRun.objects.get(external_id="r1")


def streamed(kind: str = "text") -> list[str]:
    rows = Event.objects.filter(log=the_run().pk, type=f"llm.{kind}.delta").order_by("seq")
    return [row.payload["text"] for row in rows]


def check() -> None:
    run = the_run()
    seqs = list(log.events_of(run.pk).values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []


def pieces_of(text: str, count: int, chance: random.Random) -> list[str]:
    borders = [0, *sorted(chance.randrange(len(text) + 1) for _ in range(count - 1)), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(borders)]


@pytest.mark.parametrize("per_request", [1, 3, 500])
def test_joined_deltas_are_the_masked_text_for_every_kind_of_secret(sender: Sender, per_request: int) -> None:
    chance = random.Random(per_request)
    send(sender, event("run.started"))
    for _, text, _ in chance.sample(TRUE, 25):
        whole = f"Look: {text}\nThat is all."
        documents = [*deltas(*pieces_of(whole, 5, chance)), event("llm.turn.end")]
        before = len(streamed())
        for begin in range(0, len(documents), per_request):
            send(sender, *documents[begin : begin + per_request])

        assert "".join(streamed()[before:]) == DEFAULT.clean_text(whole)[0], text
        answer = the_run().messages.order_by("-position")[0]
        assert text_of(answer.content) == DEFAULT.clean_text(whole)[0]
    check()


def test_a_secret_of_the_project_is_masked_across_requests(sender: Sender) -> None:
    redaction_changes.add_secret(sender.project, "billing", "correct horse battery", actor=SYSTEM)
    CACHE.expire()
    send(sender, event("run.started"), *deltas("say correct", " hor", kind="thinking"))
    assert streamed("thinking") == ["say ", ""]
    send(sender, *deltas("se battery", " now", kind="thinking"))

    assert [text.partition(":")[0] for text in streamed("thinking")] == ["say ", "", "[REDACTED", " now"]
    assert Event.objects.get(log=the_run().pk, seq=5).sanitized == "redacted"


def test_held_back_text_is_stored_when_the_answer_ends(sender: Sender) -> None:
    """No text is lost, whatever event ends the answer, and the rest becomes a delta of its block."""
    send(sender, event("run.started"))
    ends = [
        event("llm.turn.end"),
        event("llm.turn.end", {"text": "the whole"}),
        event("llm.turn.start"),
        event("message.added", {"role": "user", "content": "next"}),
        event("tool.start", {"callId": "c", "toolName": "ls"}),
        event("llm.text", {"text": " A block of its own."}),
        event("run.completed"),
    ]
    for end in ends:
        send(sender, event("llm.text.delta", {"text": "of the files ", "index": 2}, nodeId="n"), *deltas("sk-"))
        before = len(streamed())
        assert streamed()[-2:] == ["of the files ", ""]
        send(sender, end)
        assert streamed()[before:] == ["sk-"], end
    assert ExternalRun.objects.get(run=the_run()).open_texts == {}
    check()


def test_events_between_two_deltas_never_make_a_secret_readable(sender: Sender) -> None:
    """Other events, the other text, a change of block, a runner that counts its deltas in `index`, a pause."""
    send(sender, event("run.started"))
    between = [
        event("x.progress"),
        *deltas("Hm.", kind="thinking"),
        event("run.waiting", {"reason": "input"}),
        event("run.phase", {"status": "running"}),
        event("tool.output", {"text": "a line"}),
    ]
    documents = []
    for index, text in enumerate(pieces_of(f"token: {SECRET} ends.", 6, random.Random(1))):
        documents.append(event("llm.text.delta", {"text": text, "index": index}, nodeId=f"n{index % 2}"))
        documents.append(between[index % len(between)])
    for document in documents:
        send(sender, document)
    send(sender, event("llm.turn.end"))

    assert "".join(streamed()) == DEFAULT.clean_text(f"token: {SECRET} ends.")[0]
    assert streamed("thinking") == ["Hm."]
    check()


def test_late_deltas_are_masked_together(sender: Sender) -> None:
    send(sender, event("run.started"), event("run.completed"), *deltas("late: ", SECRET[:20]))
    send(sender, *deltas(SECRET[20:]))
    assert "".join(streamed()) == "late: "
    send(sender, event("llm.turn.end"))

    assert streamed() == ["late: ", "", "", MARK]
    assert set(Event.objects.filter(log=the_run().pk, type="llm.text.delta").values_list("late", flat=True)) == {True}
    check()


def test_a_repeated_request_adds_no_text_twice(sender: Sender) -> None:
    first = [event("run.started", event_id="a"), event("llm.text.delta", {"text": f"is {SECRET[:9]}"}, event_id="b")]
    second = [event("llm.text.delta", {"text": f"{SECRET[9:]} so"}, event_id="c")]
    send(sender, *first)
    assert [result.duplicate for result in send(sender, *first)] == [True, True]
    # A new event and a repeat in one request, stored after the lookup of the IDs.
    assert [result.duplicate for result in send(sender, first[1], *second)] == [True, False]
    assert [result.duplicate for result in send(sender, *second)] == [True]
    send(sender, event("llm.turn.end"))

    assert "".join(streamed()) == f"is {MARK} so"
    check()


def test_held_back_text_is_bounded(sender: Sender) -> None:
    """An endless token is released as one mark, and its rest is dropped on arrival."""
    send(sender, event("run.started"))
    for _ in range(6):
        send(sender, *deltas("api_key=" if not streamed() else "", *["Ab1xY9" * 250] * 5))
        [state] = ExternalRun.objects.get(run=the_run()).open_texts.values()
        assert len(json.dumps(state)) < 34_000
    send(sender, *deltas(" and more"), event("llm.turn.end"))

    whole = "".join(streamed())
    assert (whole[:18], whole[-10:]) == ("api_key=[REDACTED:", "] and more")
    assert "xY9" not in whole
    check()


def test_an_answer_of_another_project_does_not_continue_a_text(sender: Sender) -> None:
    other = Sender(Project.objects.create(slug="other", name="Other"), "key:other")
    for one in (sender, other):
        send(one, event("run.started"))
    send(sender, *deltas("it is password="))
    send(other, *deltas("hunter2hunter2"), event("llm.turn.end"))

    run = AgentRun.objects.get(external_id="r1", project=other.project)
    assert log.events_of(run.pk).get(type="llm.text.delta").payload["text"] == "hunter2hunter2"
