"""Test the tabs of a run besides its timeline: contents, links, and number of queries."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Role
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunToolCall, TurnUsage
from runs.pages.run import cost_page
from runs.pages.run.waterfall_page import MAX_BARS, waterfall_of
from runs.queries.run_spans import Span, SpanKind, spans_of
from runs.statuses import PauseReason, RunStatus
from tests.support.factories import drive, make_agent, make_awaiting_approval, make_person, make_run, make_waiting
from tests.support.pages import Element, parse
from tests.support.timelines import told
from timeline.events.run import RunPaused
from timeline.models import Source

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
TABS = ("waterfall", "messages", "calls", "errors", "changes", "cost", "state", "events")


@pytest.fixture
def run() -> AgentRun:
    return drive(make_run(make_agent(max_steps=4)))


def client_of(run: AgentRun, role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(make_person(run.project, role))
    return client


def tab(client: Client, run: AgentRun, path: str) -> Element:
    answer = client.get(f"/runs/{run.pk}/{path}" if path and path[0] != "?" else f"/runs/{run.pk}{path}")
    assert answer.status_code == 200, answer.content
    return parse(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def rows(page: Element, css_class: str = "table") -> list[str]:
    table = page.all(css_class)[0]
    return [row.words for body in table.walk() if body.tag == "tbody" for row in body.elements]


def links(page: Element, text: str) -> list[str]:
    return [each.attributes["href"] for each in page.walk() if each.tag == "a" and each.words == text]


# --- All tabs ---------------------------------------------------------------------------------------------------------


def test_each_tab_has_the_status_line_the_actions_and_the_tabs(run: AgentRun) -> None:
    client = client_of(run)
    for path in TABS:
        page = tab(client, run, path)
        line = page.find("run-line")
        assert line is not None
        assert line.words.startswith("paused step limit reached step 4/4"), path
        [current] = [each for each in page.all("run-tabs")[0].walk() if each.attributes.get("aria-current") == "page"]
        assert current.attributes["href"] == f"/runs/{run.pk}/{path}"
        assert f"/runs/{run.pk}/resume" in {each.attributes.get("action") for each in page.walk()}


@pytest.mark.breaks_invariants("events of an external runner in the log of a native run")
def test_the_query_count_of_a_tab_does_not_grow_with_rows() -> None:
    run = make_run()
    client = client_of(run)

    def queries() -> dict[str, int]:
        counts = {}
        for path in ("", *(f"/{each}" for each in TABS)):
            with CaptureQueriesContext(connection) as captured:
                assert client.get(f"/runs/{run.pk}{path}").status_code == 200
            counts[path] = len(captured)
        return counts

    def step(number: int) -> None:
        told(run, "llm.turn.start", {"model": "m"}, step=number)
        told(run, "llm.turn.end", {"text": "Yes."}, step=number)
        told(run, "tool.start", {"call_id": "c", "tool_name": "t"}, step=number)
        told(run, "tool.end", {"call_id": "c", "error": "no"}, step=number)
        told(run, "file.changed", {"path": f"a{number}.py", "additions": 1}, step=number)

    step(1)
    few = queries()
    for number in range(2, 30):
        step(number)

    many = queries()
    assert {path: count for path, count in many.items() if count > few[path]} == {}
    assert max(few.values()) <= 24, few


@pytest.mark.parametrize(
    "query",
    ["calls?status=none", "calls?after=1", "events?type=x", "state?seq=x", "messages?of=1", "cost?after=-1", "?call=1"],
)
def test_invalid_queries_are_refused(run: AgentRun, query: str) -> None:
    path = query if query.startswith("?") else f"/{query}"
    assert client_of(run).get(f"/runs/{run.pk}{path}").status_code == 400


# --- Single tabs ------------------------------------------------------------------------------------------------------


def test_messages_of_the_whole_conversation_are_listed(run: AgentRun) -> None:
    client = client_of(run)
    page = tab(client, run, "messages")
    assert len(page.all("said")) == run.messages.count()
    assert "Calls" in page.all("said-assistant")[0].words

    answer = client.post(f"/runs/{run.pk}/resume", {})
    later = AgentRun.objects.get(resumed_from=run)
    assert answer.status_code == 303
    page = tab(client, later, "messages")
    [link] = [each for each in page.walk() if each.tag == "a" and each.words.startswith("Run 1")]
    assert len(tab(client, later, f"messages{link.attributes['href'].partition('/messages')[2]}").all("said")) > 1
    assert client.get(f"/runs/{later.pk}/messages?of={uuid.uuid4()}").status_code == 404
    plain = tab(client, later, "messages?as=text")
    chips = [each for each in plain.walk() if each.tag == "a" and each.words.startswith(("Run 1", "This run"))]
    assert [each.attributes["href"].partition("?")[2] for each in chips] == [f"of={run.pk}&as=text", "as=text"]


def test_messages_are_formatted_and_available_as_plain_text(run: AgentRun) -> None:
    prompt = make_run(run.agent, "# Plan\n<script>alert(1)</script> **Do** it:\n  now")
    page, plain = tab(client_of(prompt), prompt, "messages"), tab(client_of(prompt), prompt, "messages?as=text&after=0")
    [link] = [each for each in page.walk() if each.tag == "a" and each.words == "As plain text"]
    [back] = [each for each in plain.walk() if each.tag == "a" and each.words == "Formatted"]

    [prose] = page.all("markdown")
    assert [each.words for each in prose.walk() if each.tag in ("h3", "strong")] == ["Plan", "Do"]
    assert "<script>alert(1)</script> Do it:\n\u00a0\u00a0now" in prose.text
    assert plain.all("text")[0].text == "# Plan\n<script>alert(1)</script> **Do** it:\n  now"
    assert link.attributes["href"] == "?as=text"
    assert back.attributes["href"] == "?after=0"


@pytest.mark.breaks_invariants("a message is rolled back without its event")
def test_rolled_back_messages_are_struck_through(run: AgentRun) -> None:
    last = run.messages.order_by("-position").first()
    assert last is not None
    run.messages.filter(pk=last.pk).update(rolled_back_at=last.created_at)

    [struck] = tab(client_of(run), run, "messages").all("said", "is-rolled-back")
    assert "not sent any more" in struck.words


def test_tool_calls_are_filtered_and_link_to_the_timeline(run: AgentRun) -> None:
    client = client_of(run)
    calls = AgentRunToolCall.objects.filter(run=run)
    assert len(rows(tab(client, run, "calls"))) == calls.count() > 1
    name = calls.order_by("step_number", "pk").values_list("tool_name", flat=True)[0]
    assert len(rows(tab(client, run, f"calls?name={name}"))) == calls.filter(tool_name=name).count()
    assert "No tool call passes the filters." in tab(client, run, "calls?status=unknown").words

    first = calls.order_by("step_number", "pk")[0]
    address = client.get(f"/runs/{run.pk}?call={first.pk}")["Location"]
    page = client.get(address).content.decode()
    assert f'id="call-{first.pk}"' in page
    assert "is-target" in page


def test_a_resolved_outcome_shows_who_resolved_it_and_when() -> None:
    run = make_waiting()
    client = client_of(run)
    call = AgentRunToolCall.objects.get(run=run, status="unknown")
    client.post(f"/runs/{run.pk}/calls/{call.pk}/resolve", {"choice": "done", "text": "It was."})
    call.refresh_from_db()

    row = next(row for row in rows(tab(client, run, "calls")) if call.tool_name in row and "not observed" in row)
    assert f"by user:{call.resolved_by}".removeprefix("by user:") in row or str(call.resolved_by) in row
    assert f"{call.resolved_at:%Y-%m-%d}" in row


@pytest.mark.breaks_invariants("events of an external runner in the log of a native run")
def test_errors_are_listed_and_the_next_error_wraps_around() -> None:
    run = make_run()
    client = client_of(run)
    assert "No errors." in tab(client, run, "errors").words
    assert client.get(f"/runs/{run.pk}?event=next-error")["Location"] == f"/runs/{run.pk}"
    first = told(run, "error", {"error": "disk full", "error_type": "tool_error"}, step=1)
    told(run, "llm.turn.start", {"model": "m"}, step=2)
    second = told(run, "tool.end", {"call_id": "c", "tool_name": "t", "error": "no such file"}, step=2)

    page = tab(client, run, "errors")
    assert [each.id for each in page.all("failure")] == [f"error-{first}", f"error-{second}"]
    assert "step 1 · tool error" in page.all("failure")[0].words
    assert "no such file" in page.all("failure")[1].words

    def after(seq: int) -> str:
        return client.get(f"/runs/{run.pk}?event=next-error&after={seq}")["Location"]

    assert after(0) == f"/runs/{run.pk}?event={first}#target"
    assert after(first) == f"/runs/{run.pk}?event={second}#target"
    assert after(second) == f"/runs/{run.pk}?event={first}#target"


def test_reported_files_commits_and_deployments_are_listed() -> None:
    run = make_run()
    told(
        run,
        "file.changed",
        {"path": "src/a.py", "change": "edited", "additions": 3, "deletions": 1},
        step=1,
    )
    told(run, "git.commit", {"sha": "ab12", "subject": "Mend it", "branch": "main"}, step=1)
    told(run, "deploy.status", {"service": "web", "status": "failed", "error": "no"}, step=2)

    page = tab(client_of(run), run, "changes")
    assert [row.split()[1] for row in rows(page)] == ["commit", "deployment"]
    assert "src/a.py" in page.words
    assert "1 file , +3 −1 lines" in page.words.replace("file,", "file ,")


def test_the_cost_is_listed_by_model_and_by_step(run: AgentRun) -> None:
    page = tab(client_of(run), run, "cost")
    models, steps = (each for each in page.all("tab-table"))
    assert len([body for body in steps.walk() if body.tag == "tr"]) == 1 + run.step_count
    usage = TurnUsage.objects.filter(run=run)
    fresh = sum(row.input_tokens - row.cache_read_tokens - row.cache_write_tokens for row in usage)
    assert f"{fresh:,}" in models.words
    assert len([each for each in page.walk() if each.tag == "rect"]) == run.step_count
    [axis] = page.all("cost-axis")
    assert axis.words.startswith("step 1 ")
    assert axis.words.endswith(f" step {run.step_count}")
    assert "The highest: Step " in axis.words


def test_the_cost_tab_names_the_steps_of_its_page(run: AgentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(run)
    assert "Chart and table show" not in tab(client, run, "cost").words
    monkeypatch.setattr(cost_page, "PAGE_SIZE", 1)

    last = run.step_count
    assert f"Chart and table show steps 1 to 1 of {last}." in tab(client, run, "cost").words
    assert f"Chart and table show steps {last} to {last} of {last}." in tab(client, run, f"cost?after={last - 1}").words


def test_the_state_is_the_one_after_the_event(run: AgentRun) -> None:
    client = client_of(run)
    first, last = tab(client, run, "state?seq=1"), tab(client, run, "state")
    assert "Status queued" in first.words
    assert "Status paused step limit reached" in last.words
    assert links(first, "Next") == ["?seq=2"]
    assert f"Event 99999 does not exist. Showing event {run.log.last_seq}." in tab(client, run, "state?seq=99999").words


def test_events_are_filtered_by_type(run: AgentRun) -> None:
    client = client_of(run)
    types = [row.split()[1] for row in rows(tab(client, run, "events?type=tool"))]
    assert types
    assert all(each.startswith("tool.") for each in types)
    assert "No events of this type." in tab(client, run, "events?type=approval").words
    page = tab(client, run, "events?after=2")
    assert rows(page)[0].startswith("3 ")
    assert [each.attributes["hx-get"] for each in page.walk() if "hx-get" in each.attributes][-1].startswith("/runs/")


# --- Waterfall --------------------------------------------------------------------------------------------------------


@pytest.mark.breaks_invariants("events of an external runner in the log of a native run")
def test_the_waterfall_has_a_bar_for_each_attempt_and_wait() -> None:
    run = make_run()
    begin = run.created_at

    def at(seconds: float, type_: str, payload: dict[str, Any], step: int | None = None) -> int:
        return told(run, type_, payload, step=step, ts=begin + timedelta(seconds=seconds))

    at(10, "run.started", {"worker": "w"})
    first = at(10, "llm.turn.start", {"model": "big"}, 1)
    at(12, "llm.turn.abandoned", {"reason": "timeout", "model": "big"}, 1)
    at(12, "retry.scheduled", {"what": "llm", "attempt": 1, "delay_ms": 4000}, 1)
    at(16, "llm.turn.start", {"model": "big", "attempt": 1}, 1)
    at(18, "llm.turn.end", {"model": "big", "attempt": 1}, 1)
    at(18, "tool.start", {"call_id": "c", "tool_name": "read"}, 1)
    at(21, "tool.end", {"call_id": "c", "tool_name": "read", "status": "completed"}, 1)
    at(21, "run.waiting", {"reason": "input"})
    at(3621, "run.phase", {"status": "running"})
    at(3621, "run.completed", {})

    spans = spans_of(run.pk).spans
    assert [(s.kind.value, s.name, s.attempt, s.is_failed) for s in spans] == [
        ("queue", "queued", 0, False),
        ("model", "big", 0, True),
        ("wait", "retry", 0, False),
        ("model", "big", 1, False),
        ("tool", "read", 0, False),
        ("wait", "input", 0, False),
    ]
    page = tab(client_of(run), run, "waterfall")
    assert len(rows(page, "waterfall")) == len(spans)
    assert f"/runs/{run.pk}?event={first}#target" in links(page, "big")
    # An hour of waiting takes no more space on the axis than seconds of work.
    widths = [float(each.attributes["width"].rstrip("%")) for each in page.walk() if each.tag == "rect"]
    assert widths[-1] < widths[-2]
    assert "shortened here by" in page.words


def test_a_long_waterfall_is_grouped(run: AgentRun) -> None:
    spans = [
        Span(
            SpanKind.TOOL,
            "t",
            n,
            n // 3,
            run.created_at + timedelta(seconds=n),
            run.created_at + timedelta(seconds=n + 1),
        )
        for n in range(MAX_BARS + 1)
    ]
    drawn = waterfall_of(spans, run.created_at)

    assert drawn.is_grouped
    assert len(drawn.rows) <= MAX_BARS / 5
    assert sum(row.count for row in drawn.rows) == len(spans)
    assert all(0 <= bar.x <= 100 for row in drawn.rows for bar in row.bars)


@pytest.mark.parametrize(("outcome", "text"), [("error", ""), ("denied", "denied"), ("lease_expired", "lease expired")])
def test_a_failed_span_shows_its_outcome(run: AgentRun, outcome: str, text: str) -> None:
    """A tool call with an error has no additional text: "after an error" is the reason of a paused run."""
    span = Span(SpanKind.TOOL, "t", 1, 1, run.created_at, run.created_at, is_failed=True, outcome=outcome)

    [row] = waterfall_of([span], run.created_at).rows
    assert (row.is_failed, row.outcome) == (True, text)


# --- Status line, waits and commands ----------------------------------------------------------------------------------


def test_a_wait_is_at_the_end_of_the_timeline_and_linked_from_the_status_line() -> None:
    run = make_awaiting_approval()
    client = client_of(run, Role.ADMIN)
    page = tab(client, run, "")
    ids = [each.id for each in page.walk() if each.id in ("run-line", "timeline", "needs")]
    assert ids == ["run-line", "timeline", "needs"]
    needs = page.find("needs")
    assert needs is not None
    assert needs.all("approval")
    assert not page.find("head").all("approval")  # type: ignore[union-attr]
    assert [each.attributes["href"] for each in page.all("line-reason")] == ["#needs"]
    assert page.all("row-needs")
    # With older events, and on other tabs, it is at the top.
    for path in ("?before=3", "calls"):
        ids = [each.id for each in tab(client, run, path).walk() if each.id in ("needs", "timeline", "tab")]
        assert ids[0] == "needs"


def test_actions_can_be_copied_as_commands_without_a_secret(run: AgentRun) -> None:
    page = tab(client_of(run), run, "")
    copied = {each.attributes["data-copy"] for each in page.walk() if "data-copy" in each.attributes}
    base = f"http://testserver/api/projects/{run.project.slug}/agent-runs/{run.pk}"

    for name in ("resume", "stop", "fork"):
        assert any(text.startswith(f"agentops run {name} {run.pk}") for text in copied)
        [curl] = [text for text in copied if text.endswith(f"{base}/{name}")]
        assert "$AGENTOPS_API_KEY" in curl
    assert f"agentops run send {run.pk} MESSAGE" in copied
    [reason] = [each.words for each in page.all("refused")]
    assert reason == "Pause This run is already paused."


@pytest.mark.breaks_invariants("an external run that a worker has claimed")
def test_the_status_line_and_the_facts_distinguish_waits_from_work(run: AgentRun) -> None:
    page = tab(client_of(run), run, "")
    assert "recorded" in page.find("facts").words  # type: ignore[union-attr]
    paused = make_run(make_agent(run.project))
    assert transitions.claim(paused.pk, "host:1:abc") is not None
    transitions.move(
        AgentRun.objects.get(pk=paused.pk),
        RunStatus.PAUSED,
        RunPaused(reason=PauseReason.OPERATOR),
        source=Source.WORKER,
        reason=PauseReason.OPERATOR,
    )
    AgentRun.objects.filter(pk=paused.pk).update(source="import", created_at=paused.created_at + timedelta(days=1))
    words = tab(client_of(paused), paused, "").find("facts").words  # type: ignore[union-attr]
    assert "Queued" not in words
    assert words.index("Started") < words.index("Imported")
