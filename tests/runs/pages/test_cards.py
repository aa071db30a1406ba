"""Test rows and cards: each message and call appears once, whole or cut, and no content of a log breaks the page."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.utils import timezone
from pydantic_ai.messages import BinaryContent, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart

from runs.conversation import tool_starts
from runs.fixtures.format import UNKNOWN_OUTCOME
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.pages.timeline.cards import OTHER_BYTES, TEXT_BYTES
from runs.pages.timeline.event_texts import EventTexts
from runs.pages.timeline.fold import Fold
from runs.providers.messages import request
from runs.statuses import ToolStatus
from tests.support.factories import drive, make_agent, make_run
from tests.support.pages import Element, ParsedPage, parse
from tests.support.timelines import RECORDINGS, add, answer, live_messages, painted, recorded, stored, told
from timeline.display import clean
from timeline.events import CHUNK_TYPES, REGISTRY, EventType
from timeline.models import Event

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></bdi></div></li></ol><svg onload=alert(1)>",
    '<div hx-get="/admin/" hx-trigger="load" hx-on:click="x()" hx-swap-oob="beforeend:#head">',
    "{{ 7|add:1 }}{% debug %}",
    "' onmouseover='alert(1)",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
]
Role = AgentRunMessage.Role

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.breaks_invariants("events that are made to be shown, without rows"),
]


@pytest.fixture
def run() -> AgentRun:
    return make_run(make_agent(), "Look into it.")


def card(run: AgentRun, id_: str) -> Element:
    found = shown(run).element(id_)
    assert isinstance(found, Element)
    return found


def shown(run: AgentRun) -> ParsedPage:
    run.log.refresh_from_db()
    return painted(run)


def last_row(run: AgentRun) -> Element:
    return shown(run).rows[-1]


def call(run: AgentRun, name: str = "grep", *, step: int = 1, **columns: Any) -> AgentRunToolCall:
    part = ToolCallPart(name, columns.pop("arguments", {"q": "x"}), tool_call_id="c1")
    row = tool_starts.planned_call(answer(run, part, step=step), part, effect=None)
    row.save(force_insert=True)
    told(run, "tool.start", {"call_id": "c1", "tool_name": name[:200] or "x"}, step=step, ref_id=row.pk)
    row.status, row.starts = ToolStatus.RUNNING, 1
    row.save()
    return row


def ended(run: AgentRun, row: AgentRunToolCall, output: Any, **payload: Any) -> None:
    part = ToolReturnPart(row.tool_name, output, row.call_id)
    result = add(run, request(part), role=Role.TOOL_RESULT, step=row.step_number)
    row.result_message, row.status = result, payload.get("status", "completed")
    row.save()
    told(
        run, "tool.end", {"call_id": row.call_id, "status": row.status, **payload}, step=row.step_number, ref_id=row.pk
    )


def letters(text: str) -> str:
    """Return the letters of a text, without Markdown syntax and list numbers, which may become elements."""
    return "".join(character for character in text if character.isalpha())


# --- Completeness -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS[:2])
def test_every_message_and_call_of_a_run_appears_once(name: str) -> None:
    run = drive(recorded(name))
    page = shown(run)
    ids = [row.id for row in page.rows]

    assert len(ids) == len(set(ids))
    for message in run.messages.all():
        texts = [part.get("content") for part in message.content["parts"] if isinstance(part.get("content"), str)]
        for text in filter(None, texts):
            assert letters(clean(text)[:200]) in letters(page.timeline.text), f"{message.role} at {message.position}"
    calls = list(run.tool_calls.all())
    assert {f"call-{row.pk}" for row in calls} == {id_ for id_ in ids if id_.startswith("call-")}
    for row in calls:
        assert row.tool_name in page.element(f"call-{row.pk}").words
    assert [id_ for id_ in ids if id_.startswith("turn-")] == [f"turn-{n}" for n in range(1, run.step_count + 1)]


def test_an_answer_shows_its_cost(run: AgentRun) -> None:
    message = answer(run, TextPart("Yes."))
    end = {"model": "big-model", "input_tokens": 1234, "output_tokens": 0, "cost_usd": "0.0123", "duration_ms": 2300}
    told(run, "llm.turn.end", {**end, "finish_reason": "stop"}, step=1, ref_id=message.pk)

    words = card(run, "turn-1").words

    for fact in ("big-model", "1,234 in · 0 out", "$0.0123", "2.3 s", "stop", "Yes."):
        assert fact in words


def test_thinking_is_collapsed_and_calls_are_linked(run: AgentRun) -> None:
    parts = [ThinkingPart("Hm, let me see."), TextPart("I look."), ToolCallPart("grep", {}, tool_call_id="c1")]
    message = answer(run, *parts)
    row = tool_starts.planned_call(message, parts[2], effect=None)  # type: ignore[arg-type]
    row.save(force_insert=True)

    turn = card(run, "turn-1")

    [thinking] = turn.all("thinking")
    assert thinking.tag == "details"
    assert "Hm, let me see." in thinking.words
    [chip] = [element for element in turn.all("chip") if element.tag == "a"]
    assert chip.attributes["href"] == f"#call-{row.pk}"


def test_calls_beyond_sixty_four_are_only_counted(run: AgentRun) -> None:
    answer(run, *[ToolCallPart(f"tool_{n}", {}, tool_call_id=f"c{n}") for n in range(70)])

    words = card(run, "turn-1").words

    assert "tool_63" in words
    assert "tool_64" not in words
    assert "and 6 more" in words


# --- Long texts -----------------------------------------------------------------------------------------------------


def test_long_texts_are_cut_and_link_to_the_whole(run: AgentRun) -> None:
    message = answer(run, TextPart("é" * TEXT_BYTES))

    turn = card(run, "turn-1")

    [text] = turn.all("text")
    assert text.text.strip() == "é" * (TEXT_BYTES // 2)
    [more] = [element for element in turn.all("more")[0].walk() if element.attributes.get("hx-get")]
    assert more.attributes["href"] == more.attributes["hx-get"] == f"/runs/{run.pk}/messages/{message.pk}"
    assert more.words == "Show all (16.0 KB)"


def test_a_megabyte_in_one_line_is_cut_by_the_database(run: AgentRun) -> None:
    row = call(run)
    ended(run, row, "x" * 1_000_000, bytes=1_000_000)

    found = card(run, f"call-{row.pk}")

    assert "x" * OTHER_BYTES in [payload.text for payload in found.all("payload")]
    assert "Show all (976.6 KB)" in found.words


def test_secrets_are_masked_before_a_text_is_cut(run: AgentRun) -> None:
    secret = "sk-ant-api03-" + "Ab1" * 30
    answer(run, TextPart("y" * (TEXT_BYTES - 40) + " " + secret))
    answer(run, ThinkingPart(secret), ToolCallPart("grep", {"key": secret}, tool_call_id="c"), step=2)

    text = shown(run).timeline.text

    assert secret[:20] not in text
    assert "[REDACTED:" in text
    assert secret in json.dumps([message.content for message in run.messages.all()])


def test_empty_texts_and_no_tokens(run: AgentRun) -> None:
    message = answer(run, TextPart(""))
    told(run, "llm.turn.end", {"input_tokens": 0}, step=1, ref_id=message.pk)
    row = call(run, step=2, arguments={})
    ended(run, row, "")

    assert "Empty response." in card(run, "turn-1").words
    assert "No output." in card(run, f"call-{row.pk}").words


def test_media_are_named(run: AgentRun) -> None:
    picture = BinaryContent(data=b"\x89PNG" * 9000, media_type="image/png")
    row = call(run)
    ended(run, row, ["a caption", picture])
    asked = make_run(make_agent(), ["What is this?", {"kind": "image-url", "url": "https://x.test/a.png"}])

    found = card(run, f"call-{row.pk}")
    assert "a caption" in found.words
    assert "iVBO" not in found.text
    [image] = [element for element in found.walk() if element.tag == "img"]
    assert image.attributes["src"] == f"/runs/{run.pk}/messages/{row.result_message_id}/media/0"
    assert "image/png" in shown(asked).timeline.words
    assert "What is this?" in shown(asked).timeline.words
    assert "https://x.test" not in shown(asked).timeline.words


# --- Outcomes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "classes"), [("error", "is-error"), ("denied", "is-denied"), ("unknown", "is-unknown")]
)
def test_failed_calls_are_marked(run: AgentRun, status: str, classes: str) -> None:
    row = call(run)
    ended(run, row, UNKNOWN_OUTCOME if status == "unknown" else "no such file", status=status)

    found = card(run, f"call-{row.pk}")

    assert {f"is-{status}", "is-error"} <= found.classes
    [output] = [element for element in found.all("output") if element.tag == "details"]
    assert "open" in output.attributes
    assert ("Unknown outcome" in found.words) is (status == "unknown")


def test_a_call_that_never_started_has_a_card(run: AgentRun) -> None:
    part = ToolCallPart("no_such_tool", {"a": 1}, tool_call_id="c1")
    row = tool_starts.planned_call(answer(run, part), part, effect=None)
    row.save(force_insert=True)
    row.result_message = add(
        run, request(ToolReturnPart("no_such_tool", "There is no tool.", "c1")), role=Role.TOOL_RESULT
    )
    row.save()
    told(run, "tool.end", {"call_id": "c1", "status": "error", "error": "There is no tool."}, step=1, ref_id=row.pk)
    page = shown(run)

    assert "There is no tool." in page.element(f"call-{row.pk}").words
    # Live, it is a new row, not a replacement.
    assert f'<li id="call-{row.pk}"' in live_messages(run, run.log.last_seq - 1)[0]


def test_a_retry_shows_its_number_and_time(run: AgentRun) -> None:
    payload = {
        "what": "llm",
        "attempt": 1,
        "max_attempts": 4,
        "delay_ms": 500,
        "error_type": "timeout",
        "error": "slow",
    }
    told(run, "retry.scheduled", payload, step=1)

    row = last_row(run)

    assert {"row-retry", "is-error"} <= row.classes
    assert "attempt 1 of 4 failed" in row.words
    assert "next attempt" in row.words
    assert "slow" in row.words


def test_a_second_start_replaces_the_card(run: AgentRun) -> None:
    row = call(run)
    seq = told(run, "tool.start", {"call_id": "c1", "tool_name": "grep"}, step=1, ref_id=row.pk)
    row.starts = 2
    row.save()

    assert "started 2 times" in card(run, f"call-{row.pk}").words
    assert 'hx-swap-oob="true"' in live_messages(run, seq - 1)[0]


# --- Unexpected content ----------------------------------------------------------------------------------------------

ODD: list[Any] = [{}, {"message": 7}, {"role": "assistant", "content": {"a": [1]}}, [], "text", {"text": None}]
ODD += [{"call_id": 5, "attempt": "x", "status": ["a"], "tool_calls": {"a": 1}, "positions": "abc", "delay_ms": 1e300}]


@pytest.mark.parametrize("payload", ODD, ids=range(len(ODD)))
def test_payloads_from_older_versions_do_not_break_the_page(run: AgentRun, payload: Any) -> None:
    for type_ in [*EventType, "run.forgotten", "X", "x.ours.own"]:
        for step in (None, 1):
            stored(run, type_, payload, step=step)
    run.log.refresh_from_db()

    assert len(painted(run).rows) > 50
    assert parse("".join(live_messages(run, 2))).words


ONE_OF_EACH: list[Any] = ["words", 3, True, ["a"], {"b": 1}, "01a1f93d-90c9-749a-b86c-718148984403"]


@pytest.mark.parametrize("type_", sorted(set(EventType) - CHUNK_TYPES))
def test_each_field_may_be_the_only_one(run: AgentRun, type_: str) -> None:
    """A template that uses two fields must not require both."""
    fields = sorted(REGISTRY[type_].model_fields)
    events = [
        Event(log_id=run.pk, seq=seq, type=type_, ts=timezone.now(), step=1, payload={name: value})
        for seq, (name, value) in enumerate(itertools.product(fields, ONE_OF_EACH), start=1)
    ]
    events += [Event(log_id=run.pk, seq=0, type=type_, ts=timezone.now(), payload=dict.fromkeys(fields, "all"))]
    for event in events:
        fold = Fold(EventTexts(base="/runs/x"))
        fold.take(event)

        assert render_to_string("timeline/_rows.html", {"items": fold.items}) or not fold.items


def test_custom_events_show_their_type_and_their_payload(run: AgentRun) -> None:
    told(run, "x.build.done", {"ok": True, "nested": {"n": [1, 2]}})

    row = last_row(run)

    assert "row-custom" in row.classes
    assert "x.build.done" in row.words
    assert '"nested": { "n": [ 1, 2 ] }' in row.words


def test_late_events_are_marked(run: AgentRun) -> None:
    told(run, "tool.end", {"call_id": "a", "status": "completed"}, late=True, step=1)

    assert "late" in last_row(run).words
    assert not shown(run).timeline.all("card-tool")


def hostile_events(run: AgentRun, text: str) -> None:
    message = answer(run, TextPart(text), ThinkingPart(text), ToolCallPart(text, {text: text}, tool_call_id=text))
    end = {"model": text, "finish_reason": text, "cost_usd": text}
    told(run, "llm.turn.end", end, step=1, ref_id=message.pk)
    row = call(run, text, step=2, arguments={text: [text]})
    ended(run, row, text, status="error", error=text)
    told(run, "tool.output", {"text": text, "late": True, "call_id": "c"})
    told(run, "llm.turn.start", {"model": text}, step=3)
    told(run, "llm.text.delta", {"text": text}, step=3)
    told(run, "llm.thinking.delta", {"text": text}, step=3)
    told(run, "tool.start", {"call_id": text, "tool_name": text, "arguments": {text: text}, "effect": text}, step=3)
    told(run, "tool.output", {"call_id": text, "text": text}, step=3)
    told(run, "error", {"error": text, "error_type": text, "context": {text: text}})
    told(run, "x.hostile", {text: text, "message": text})
    told(run, "safety.block", {"code": text, "reason": text, "tool_name": text})
    told(run, "approval.requested", {"tool_name": text, "arguments": {"a": text}, "reason": text, "by": text})
    told(run, "child_run.started", {"run_id": text, "agent": text, "prompt": text})
    told(run, "file.changed", {"path": text, "diff": text, "change": text})
    told(run, "deploy.status", {"status": text, "url": text, "error": text})
    told(run, "message.added", {"role": "user", "content": [{text: text}, text]})
    told(run, "retry.scheduled", {"error": text, "error_type": text})
    told(run, "command.received", {"type": text, "by": text, "payload": {"message": text}})
    told(run, "handoff", {"to_agent": text, "run_id": text, "reason": text})
    told(run, "node.completed", {"node": text, "output": {text: text}})
    stored(run, "hook.decided", {"hook": text, "verdict": text, "event": text, "diff": {text: text}})
    stored(run, "policy.applied", {"trigger": text, "action": text, "reason": text})
    stored(run, text[:100], {text: text})


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_all_content_is_text(run: AgentRun, text: str) -> None:
    hostile_events(run, text)
    run.log.refresh_from_db()
    for shown in (painted(run).root, parse("".join(live_messages(run, 0)))):
        assert shown.text.count(text[:12]) > 20
        for element in shown.walk():
            assert element.tag not in {"script", "img", "iframe", "style", "math", "base", "form", "table"}
            assert not any(name.startswith(("on", "hx-on")) for name in element.attributes)
            if element.tag == "svg":
                assert set(element.attributes) == {"class", "width", "height", "aria-hidden"}
            for name in ("href", "hx-get"):
                assert element.attributes.get(name, "#").startswith(("/runs/", "#", "/static/"))


def test_invisible_characters_are_marked_and_terminal_codes_removed(run: AgentRun) -> None:
    row = call(run)
    ended(run, row, "a\u202eb\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b]52;c;aGk=\x07c\r\nd\x9b2Je\x08\u200bf")

    text = card(run, f"call-{row.pk}").text

    assert "a⟨U+202E⟩bred c\nde␈⟨U+200B⟩f" in text
    assert not set("\x1b\x9b\x08\u202e\u200b\r") & set(text)


def test_colors_inside_a_secret_do_not_prevent_masking(run: AgentRun) -> None:
    row = call(run)
    ended(run, row, "sk-ant-\x1b[32mapi03-" + "Ab1" * 20 + "\x1b[0m")

    assert "Ab1Ab1" not in card(run, f"call-{row.pk}").text


def test_rows_of_another_run_are_not_displayed(run: AgentRun) -> None:
    """An event may refer to a row of another run, whose content must not appear."""
    other = make_run(make_agent(), "A secret of others.")
    message = other.messages.get()
    told(run, "message.added", {"role": "user"}, ref_id=message.pk)

    assert "A secret of others." not in shown(run).timeline.words
    assert Event.objects.filter(ref_id=message.pk).count() == 2


# --- Verdicts ---------------------------------------------------------------------------------------------------------


def row_texts(run: AgentRun) -> list[tuple[str, set[str], list[str]]]:
    """Return the text, the severity and the chips of each row with a verdict."""
    rows = [
        row for row in shown(run).root.walk() if {"row-hook", "row-approval", "row-safety", "row-policy"} & row.classes
    ]
    return [
        (
            row.all("row-text")[0].words,
            row.classes & {"is-error", "is-warning"},
            [chip.words for chip in row.all("chip")],
        )
        for row in rows
    ]


def test_a_verdict_shows_its_source_reason_and_duration_and_highlights_denials(run: AgentRun) -> None:
    """A denied call is recorded, regardless of what denied it."""
    call = {"tool_name": "deploy", "call_id": "c"}
    told(run, "hook.decided", {"hook": "a", "event": "PreToolUse", "verdict": "allow", "duration_ms": 0, **call})
    told(
        run,
        "hook.decided",
        {
            "hook": "b",
            "event": "PreToolUse",
            "verdict": "deny",
            "reason": "no",
            "failed": True,
            "duration_ms": 2001,
            **call,
        },
    )
    told(run, "safety.block", {"code": "b", "reason": "no", **call})
    told(run, "approval.requested", {"by": "hook:b", "reason": "It deploys.", **call})
    told(run, "approval.resolved", {"decision": "approved", "by": "user:oscar", **call})
    told(run, "approval.resolved", {"decision": "denied", "by": "user:oscar", "reason": "Not now.", **call})
    told(run, "approval.resolved", {"decision": "expired", **call})
    told(run, "policy.applied", {"trigger": "on_idle", "action": "nudge"})
    told(run, "policy.applied", {"trigger": "on_idle", "action": "escalate"})

    assert row_texts(run) == [
        ("Hook a allowed the call", set(), ["PreToolUse", "0 ms"]),
        ("Hook b denied the call (no)", {"is-error"}, ["PreToolUse", "failed", "2.0 s"]),
        ("Blocked deploy (no)", {"is-error"}, ["b"]),
        ("Approval requested for deploy by the hook b (It deploys.)", set(), []),
        ("deploy approved by user:oscar", set(), []),
        ("deploy denied by user:oscar (Not now.)", {"is-warning"}, []),
        ("Approval of deploy expired without a decision", {"is-warning"}, []),
        ("The agent answered without reporting completion: the policy asks it to continue", set(), []),
        ("The agent answered without reporting completion: the policy escalates the run", {"is-warning"}, []),
    ]


def test_changed_arguments_are_displayed_as_a_diff_without_secrets(run: AgentRun) -> None:
    diff = {
        "env": {"from": "production", "to": ["staging"]},
        "new": {"to": 1},
        "old": {"from": None},
        "password": {"from": "hunter2-hunter2", "to": "correct-horse"},
    }
    told(run, "hook.decided", {"hook": "a", "event": "PreToolUse", "verdict": "modify_args", "diff": diff})
    [lines] = [each.text for each in shown(run).root.all("payload")]

    assert lines.startswith('env\n- "production"\n+ ["staging"]\nnew\n+ 1\nold\n- null\npassword\n')
    assert "hunter2" not in lines
    assert "correct-horse" not in lines
