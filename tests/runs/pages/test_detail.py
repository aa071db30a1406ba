"""Test the page of a run as a whole: access, its head, its facts, its URLs, and its behavior without scripts."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from agentops.accounts.memberships import add_member
from agentops.accounts.models import Role
from runs.actions import resume as resuming
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, AgentRunToolCall, Attempt, RunError
from runs.pages.run.facts import run_data_of, with_facts
from runs.pages.timeline.window import ROWS
from runs.statuses import POLICY_WAITS, PauseReason, RunStatus, WaitReason
from tests.support.addresses import bare
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.pages import Element, ParsedPage, parse
from tests.support.second_pass import cases
from tests.support.timelines import grow, recorded, told
from timeline.events.run import RunFailed, RunPaused, RunStopped, RunWaiting
from timeline.log import events_of
from timeline.models import Log, Source

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def run() -> AgentRun:
    return make_run(make_agent(), "Look into it.")


def client_of(run: AgentRun, role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(make_person(run.project, role))
    return client


def page_of(run: AgentRun, query: str = "", role: Role = Role.OPERATOR) -> ParsedPage:
    answer = client_of(run, role).get(f"/runs/{run.pk}{query}")
    assert answer.status_code == 200, answer.content
    return ParsedPage(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def head_of(run: AgentRun, role: Role = Role.OPERATOR) -> Element:
    """Return the head as loaded separately. test_the_head_describes_the_run compares it with the head of the page."""
    answer = client_of(run, role).get(f"/runs/{run.pk}/head")
    assert answer.status_code == 200, answer.content
    return parse(answer.content.decode())


def facts_of(run: AgentRun) -> dict[str, str]:
    facts = page_of(run).element("facts")
    return {pair.elements[0].words: pair.elements[1].words for pair in facts.elements}


def banners(run: AgentRun) -> list[str]:
    return [banner.words for banner in head_of(run).all("banner")]


def moved(run: AgentRun, to: RunStatus, payload: Any, **changes: Any) -> AgentRun:
    transitions.move(AgentRun.objects.get(pk=run.pk), to, payload, source=Source.WORKER, **changes)
    return AgentRun.objects.get(pk=run.pk)


def claimed(run: AgentRun) -> AgentRun:
    assert transitions.claim(run.pk, "host:1:abc") is not None
    return AgentRun.objects.get(pk=run.pk)


def paused(run: AgentRun, **payload: Any) -> AgentRun:
    reason = payload.setdefault("reason", PauseReason.OPERATOR)
    return moved(claimed(run), RunStatus.PAUSED, RunPaused(**payload), reason=reason)


# --- Access -----------------------------------------------------------------------------------------------------------


def test_foreign_and_unknown_runs_get_the_same_response(run: AgentRun) -> None:
    stranger = client_of(make_run(make_agent(), "Another."))
    message, seq = run.messages.get(), run.log.last_seq
    for path in (
        "",
        "/rows?before=2",
        "/head",
        "/stream",
        f"/messages/{message.pk}",
        f"/calls/{message.pk}",
        f"/events/{seq}",
    ):
        foreign = stranger.get(f"/runs/{run.pk}{path}")
        unknown = stranger.get(f"/runs/{uuid.uuid4()}{path}")

        assert foreign.status_code == unknown.status_code == 404
        assert bare(foreign) == bare(unknown)


def test_parts_of_another_run_are_not_found(run: AgentRun) -> None:
    other = make_run(make_agent(run.project), "Another.")

    for path in (
        f"/messages/{other.messages.get().pk}",
        "/events/9999",
        f"/events/{10**18 - 1}",
        f"/calls/{uuid.uuid4()}",
    ):
        assert client_of(run).get(f"/runs/{run.pk}{path}").status_code == 404


def test_an_anonymous_user_is_redirected_to_the_login(run: AgentRun) -> None:
    address = f"/runs/{run.pk}?show=tools"

    assert Client().get(address).headers["Location"] == f"/login?next={quote(address, safe='')}"
    assert Client().get(f"/runs/{run.pk}/head", headers={"HX-Request": "true"}).status_code == 401
    assert Client().get(f"/runs/{run.pk}/stream", headers={"Accept": "text/event-stream"}).status_code == 401


MEANINGLESS = ["?before=x", "?before=-1", "?event=1e3", "?event=١", "?before=" + "9" * 40, "?show=nothing"]
MEANINGLESS += ["?event=1%00", "?event= 1"]


def test_invalid_queries_are_refused_with_a_reason(run: AgentRun) -> None:
    client = client_of(run)

    for query in cases(MEANINGLESS):
        for path in ("", "/rows") if "event" not in query else ("",):
            answer = client.get(f"/runs/{run.pk}{path}{query}")
            assert answer.status_code == 400, query
            assert b"must be" in answer.content, query


def test_the_pages_of_a_run_are_under_runs_in_the_navigation(run: AgentRun) -> None:
    client = client_of(run)

    for page in cases(["", "/cost", "/tree", "/replay", "/fork", "/events/1"]):
        content = client.get(f"/runs/{run.pk}{page}").content.decode()
        [link] = re.findall(r'<a href="/p/[^"]+/runs" data-go="runs"[^>]*>', content)
        assert 'aria-current="true"' in link, page


def test_a_refused_query_keeps_the_navigation_of_the_runs_project(run: AgentRun) -> None:
    client, person = Client(), make_person(run.project, Role.VIEWER)
    client.force_login(person)
    add_member(make_project("beta"), person, Role.VIEWER, actor="test")
    foreign = make_run(make_agent(make_project("gamma")))
    links = [f'href="/p/{slug}/agents"' for slug in (run.project.slug, "gamma")]

    for path, expected in ((f"{run.pk}?show=nothing", links[:1]), (f"{run.pk}/nothing", links[:1]), (foreign.pk, [])):
        content = client.get(f"/runs/{path}").content.decode()
        assert [link for link in links if link in content] == expected, path


def test_an_invalid_cursor_is_refused(run: AgentRun) -> None:
    answer = client_of(run).get(f"/runs/{run.pk}/stream?afterSeq=x")

    assert answer.status_code == 400
    assert b"afterSeq must be the seq of an event" in answer.content


NOWHERE = ["?before=0", "?before=1", "?before=999999999999999999", "?event=0", "?event=5000", "?step=5000", "?step=0"]


def test_missing_events_and_steps_still_show_the_page(run: AgentRun) -> None:
    client = client_of(run)

    for query in cases([*NOWHERE, "?event=", "?nonsense=1"]):
        answer = client.get(f"/runs/{run.pk}{query}")
        assert answer.status_code == 200, query
        assert b'id="timeline"' in answer.content, query
        if query.startswith(("?event=", "?step=")) and query != "?event=":
            assert b"does not exist" in answer.content or b"This run has no step" in answer.content, query


# --- Live updates -----------------------------------------------------------------------------------------------------


def test_the_page_of_an_active_run_is_live_from_its_last_event(run: AgentRun) -> None:
    page = page_of(run)
    run.log.refresh_from_db()
    live, timeline = page.element("live"), page.timeline

    assert live.attributes["sse-connect"] == f"/runs/{run.pk}/stream"
    assert live.attributes["sse-close"] == "end"
    assert timeline.attributes["sse-swap"] == "rows"
    assert timeline.attributes["data-last"] == str(run.log.last_seq)
    assert page.element("head").attributes["hx-trigger"].startswith("sse:status")
    assert page.rows[-1].attributes["data-seq"] == str(run.log.last_seq)


def test_the_page_of_an_ended_run_is_not_live(run: AgentRun) -> None:
    drive(run)

    page = page_of(run)

    assert "sse-connect" not in page.element("live").attributes
    assert "sse-swap" not in page.timeline.attributes


def test_a_page_of_older_rows_links_to_the_newer_ones_and_back(run: AgentRun) -> None:
    grow(run, 250)

    page = page_of(run, "?before=200")

    # Its stream continues after the newest event; the link at the end loads the rows in between.
    assert page.timeline.attributes["data-last"] == str(Log.objects.get(pk=run.pk).last_seq)
    assert "Show newest events" in page.root.words
    assert [row.id for row in page.rows[-2:]] == ["e199", "newer"]
    [link] = [element for element in page.element("newer").walk() if element.tag == "a"]
    assert link.attributes["href"] == f"/runs/{run.pk}?after=199"
    piece = client_of(run).get(link.attributes["hx-get"])
    below = ParsedPage(f'<ol id="timeline">{piece.content.decode()}</ol>')
    assert [row.id for row in below.rows] == [row.id for row in page_of(run, "?after=199").rows if row.id != "older"]
    assert below.rows[0].id == "e200"
    # The newest rows end at the position from which the stream continues.
    newest = client_of(run).get(f"/runs/{run.pk}/rows")
    assert newest.headers["Timeline-Cursor"] == page.timeline.attributes["data-last"]


def test_one_link_loads_older_rows_as_a_fragment_or_a_page(run: AgentRun) -> None:
    grow(run, 250)
    page = page_of(run)
    older = page.element("older")
    [link] = [element for element in older.walk() if element.tag == "a"]
    first = int(page.rows[0].attributes["data-seq"])

    assert link.attributes["href"] == f"/runs/{run.pk}?before={first}"
    assert link.attributes["hx-get"] == f"/runs/{run.pk}/rows?before={first}"
    piece = client_of(run).get(link.attributes["hx-get"])
    above = ParsedPage(f'<ol id="timeline">{piece.content.decode()}</ol>')
    assert [row.id for row in above.rows] == [f"e{seq}" for seq in range(first - ROWS, first)]
    assert [row.id for row in page_of(run, f"?before={first}").rows] == [*(row.id for row in above.rows), "newer"]


def test_a_link_to_an_event_marks_its_row_without_scripts(run: AgentRun) -> None:
    grow(run, 300)

    page = page_of(run, "?event=100")

    assert "is-target" in page.element("e100").classes
    assert page.element("target") in list(page.element("e100").walk())
    assert len(page.root.all("is-target")) == 1


def test_the_first_error_is_linked() -> None:
    run = drive(recorded("claude-code-5c"))
    client = client_of(run)

    [link] = [a for a in head_of(run).walk() if a.attributes.get("href", "").endswith("event=first-error#target")]
    answer = client.get(link.attributes["href"])

    ends = events_of(run.pk).filter(type="tool.end", payload__status="error")
    assert answer.headers["Location"] == f"/runs/{run.pk}?event={ends[0].seq}#target"
    clean = make_run(make_agent(), "Nothing goes wrong.")
    assert "first-error" not in client_of(clean).get(f"/runs/{clean.pk}").content.decode()
    assert client_of(clean).get(f"/runs/{clean.pk}?event=first-error").headers["Location"] == f"/runs/{clean.pk}"


# --- The head ---------------------------------------------------------------------------------------------------------


def test_the_head_describes_the_run(run: AgentRun) -> None:
    head = head_of(run)

    # The separate head also contains the bell.
    assert head.words.removesuffix(" Needs you: nothing") == page_of(run).element("head").words
    assert "Look into it." in head.words
    assert [status.words for status in head.all("status")] == ["queued"]
    assert run.agent_config["agent_id"] in head.words
    assert "fixture claude-code-5c" in head.words
    assert str(run.pk) in {element.attributes.get("data-copy") for element in head.walk()}
    assert f"agentops run show {run.pk}" in head.words
    assert f"/api/projects/{run.project.slug}/agent-runs/{run.pk}/events/stream" in head.words


def test_the_separate_head_depends_on_the_readers_role(run: AgentRun) -> None:
    told(run, "x.test")
    operator, viewer = (client_of(run, role).get(f"/runs/{run.pk}/head") for role in (Role.OPERATOR, Role.VIEWER))

    assert f'action="/runs/{run.pk}/stop"' in operator.content.decode()
    assert "csrfmiddlewaretoken" in operator.content.decode()
    assert "<form" not in viewer.content.decode()
    assert "Requires the role operator or admin." in viewer.content.decode()


def test_a_page_polls_its_head_until_the_run_has_ended(run: AgentRun) -> None:
    looking = 'hx-trigger="every 15s"'
    client = client_of(run)
    assert looking in client.get(f"/runs/{run.pk}").content.decode()
    assert looking in client.get(f"/runs/{run.pk}/head").content.decode()

    inbox.stop(run.pk, by="oscar")

    # The last head does not request another one.
    assert looking not in client.get(f"/runs/{run.pk}/head").content.decode()


def actions(run: AgentRun) -> set[str]:
    forms = [element for element in head_of(run).walk() if element.tag == "form"]
    return {form.attributes["action"].rpartition("/")[2] for form in forms} - {"labels"}


def test_each_status_has_its_actions(run: AgentRun) -> None:
    assert actions(run) == {"pause", "send", "stop"}
    claimed(run)
    assert actions(run) == {"pause", "send", "stop"}
    run = moved(run, RunStatus.PAUSED, RunPaused(reason="operator", by="oscar"), reason="operator")
    assert actions(run) == {"resume", "send", "stop"}
    moved(run, RunStatus.STOPPED, RunStopped(reason="operator"), reason="operator")
    assert actions(run) == set()


def test_a_requested_action_is_not_offered_again(run: AgentRun) -> None:
    claimed(run)
    inbox.pause(run.pk, by="oscar")
    inbox.stop(run.pk, by="bob")

    assert actions(run) == {"send"}
    assert any("Pause requested by oscar" in banner for banner in banners(run))
    assert any("Stop requested by bob" in banner for banner in banners(run))


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_a_resume_form_describes_its_effect(run: AgentRun, settings: Any) -> None:
    paused(run, by="oscar")
    AgentRun.objects.filter(pk=run.pk).update(step_count=45, max_steps=50)

    words = head_of(run).words

    assert "continues at step 46 with a budget of 50 steps (up to step 95;" in words
    assert "in the same conversation" in words
    settings.AGENTOPS_MAX_TOTAL_STEPS = 45
    assert "The lineage has used all of its 45 steps." in head_of(run).words
    assert "resume" not in actions(run)


def test_an_external_run_offers_only_stop(run: AgentRun) -> None:
    AgentRun.objects.filter(pk=run.pk).update(source="import")

    assert actions(run) == {"stop"}
    assert "executed by an external runner" in head_of(run).words


def test_the_runs_of_a_lineage_are_linked(run: AgentRun) -> None:
    paused(run)
    second = resuming.resume(run.pk, by="oscar").run
    paused(second)
    third = resuming.resume(second.pk, by="oscar").run

    first_head, second_head, third_head = head_of(run), head_of(second), head_of(third)

    assert "attempt 1 of 3" in first_head.words
    assert "attempt 2 of 3" in second_head.words
    links = {a.words: a.attributes["href"] for a in second_head.all("lineage") if a.tag == "a"}
    assert links == {
        "← resumed from": f"/runs/{run.pk}",
        "continued by →": f"/runs/{third.pk}",
        "compare with previous run": f"/compare?a={run.pk}&b={second.pk}",
    }
    links_of_third = {a.words for a in third_head.all("lineage") if a.tag == "a"}
    assert links_of_third == {"first run", "← resumed from", "compare with previous run"}
    [banner] = first_head.all("banner")
    assert "Resumed by oscar" in banner.words
    assert f"/runs/{second.pk}" in {element.attributes.get("href") for element in banner.walk()}


def test_a_child_links_to_its_parent(run: AgentRun) -> None:
    child = make_run(make_agent(run.project), "Help.", parent_id=run.pk)
    [crumbs] = head_of(child).all("crumbs")
    assert f"/runs/{run.pk}" in {element.attributes.get("href") for element in crumbs.walk()}


# --- Banners ----------------------------------------------------------------------------------------------------------


def test_a_queued_run_shows_its_position_and_a_missing_worker(run: AgentRun) -> None:
    later = make_run(make_agent(run.project), "Then this.")
    assert banners(later) == ["Queued for 1 run of this project is ahead in the queue."]
    make_run(make_agent(make_project()), "Of others.")
    AgentRun.objects.filter(pk=run.pk).update(queued_at=timezone.now() - timedelta(minutes=2))

    [banner] = banners(run)

    assert "No worker has claimed this run yet" in banner
    assert "agentops worker" in banner


def test_a_lost_worker_is_reported_before_the_takeover(run: AgentRun) -> None:
    claimed(run)
    assert banners(run) == []
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=3))

    [banner] = banners(run)

    assert "Worker lost" in banner
    assert "Another worker will continue the run" in banner


def test_a_recovery_is_reported_while_it_lasts(run: AgentRun) -> None:
    claimed(run)
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=3))
    assert transitions.claim(run.pk, "host:2:def") is not None

    [banner] = banners(run)
    assert "Another worker continues the run (recovery 1)." in banner
    assert facts_of(run)["Recoveries"] == "1"
    moved(AgentRun.objects.get(pk=run.pk), RunStatus.QUEUED, RunPaused(reason="x"), reason="slice_over")
    claimed(run)
    assert banners(run) == []
    assert Attempt.objects.filter(run=run).count() == 3


def test_a_silent_run_shows_the_time_since_its_last_event(run: AgentRun) -> None:
    claimed(run)
    Log.objects.filter(pk=run.pk).update(last_event_at=timezone.now() - timedelta(seconds=42))

    [banner] = head_of(run).all("banner")

    assert "No events" in banner.words
    assert "The worker is alive" in banner.words
    [tick] = banner.all("tick")
    assert tick.children in [[f"{seconds} s"] for seconds in range(42, 60)]  # a busy machine may be slow


@pytest.mark.every_database
@pytest.mark.breaks_invariants("a wait for children without any")
@pytest.mark.parametrize("reason", sorted(set(WaitReason) - {WaitReason.APPROVAL}))
def test_a_waiting_run_shows_the_reason(run: AgentRun, reason: WaitReason) -> None:
    """test_approvals_page.py tests waits for approval, which need a call."""
    by_itself = {WaitReason.COOLDOWN, WaitReason.RETRY_ALONE} | POLICY_WAITS
    until = timezone.now() + timedelta(minutes=3) if reason in by_itself else None
    moved(claimed(run), RunStatus.WAITING, RunWaiting(reason=reason, until=until), reason=reason, not_before=until)

    [banner] = banners(run)

    heads = "Waiting for", "Unknown outcome", "Cooling down", "Error", "Worker lost", "Being retried alone", "Sleeping"
    assert banner.startswith((*heads, "Answer cut off", "Answer refused"))
    assert ("· until" in banner) is (reason in (WaitReason.COOLDOWN, WaitReason.RETRY_ALONE))
    assert ("a policy resumes the run at" in banner) is (reason in POLICY_WAITS)


@pytest.mark.parametrize("reason", sorted(set(PauseReason) - {PauseReason.ANSWER_CUT, PauseReason.ANSWER_REFUSED}))
def test_a_paused_run_shows_the_reason_and_the_actor(run: AgentRun, reason: PauseReason) -> None:
    """test_answer_faults_page.py tests pauses because of an answer, which need one and no actor."""
    paused(run, reason=reason, by="oscar")

    [banner] = banners(run)

    assert banner.startswith("Escalated by oscar" if reason is PauseReason.ESCALATED else "Paused by oscar")
    assert len(banner) > 50


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_a_run_paused_at_its_limit_shows_the_steps_used(run: AgentRun) -> None:
    AgentRun.objects.filter(pk=run.pk).update(step_base=40, step_count=45, max_steps=5)
    paused(run, reason=PauseReason.MAX_STEPS, detail="5 of 5 steps used, 45 in the lineage")

    [banner] = banners(run)

    assert "5 of 5 steps used, 45 in the lineage" in banner


def test_a_failed_run_shows_the_error_without_secrets(run: AgentRun) -> None:
    text = "key sk-ant-api03-" + "Ab1" * 30 + " <b>refused</b>"
    moved(
        claimed(run),
        RunStatus.FAILED,
        RunFailed(error_type="unauthorized"),
        reason="unauthorized",
        error_type="unauthorized",
        error_message=text,
    )

    [banner] = banners(run)

    assert banner.startswith("Failed: unauthorized")
    assert "<b>refused</b>" in banner
    assert "Ab1Ab1" not in banner


def test_a_stopped_run_shows_the_actor(run: AgentRun) -> None:
    inbox.stop(run.pk, by="user:oscar")

    assert banners(run)[0].startswith("Stopped by user:oscar")


def test_pending_messages_are_counted(run: AgentRun) -> None:
    inbox.send(run.pk, "One.", by="oscar")
    inbox.send(run.pk, "Two.", by="oscar")

    assert any(banner.startswith("2 undelivered messages") for banner in banners(run))


def test_the_row_of_a_command_shows_a_missing_effect(run: AgentRun) -> None:
    """A row shows only that a command was superseded or refused: the head shows pending commands.

    Pending messages are also at the head, and delivered ones are in the conversation.
    """
    inbox.send(run.pk, "One.", by="oscar")
    inbox.pause(run.pk, by="oscar")
    assert outcomes(run) == [("pause", "")]

    inbox.stop(run.pk, by="oscar")

    assert outcomes(run) == [("send", "refused"), ("pause", ""), ("stop", "")]


def outcomes(run: AgentRun) -> list[tuple[str, str]]:
    """Return the type and outcome of each command in the timeline."""
    rows = [row for row in page_of(run).rows if "Command " in row.words]
    return [(row.words.split()[1], "".join(chip.words for chip in row.all("chip"))) for row in rows]


@pytest.mark.breaks_invariants("only the status of its call is set")
def test_unknown_outcomes_are_linked() -> None:
    run = drive(recorded("claude-code-5c"))
    AgentRunToolCall.objects.filter(pk=run.tool_calls.order_by("pk")[0].pk).update(status="unknown")

    [banner] = banners(run)

    assert banner.startswith("1 tool call with an unknown outcome")


# --- Facts ------------------------------------------------------------------------------------------------------------


def test_the_facts_of_a_finished_run() -> None:
    run = drive(recorded("claude-code-5c"))

    facts = facts_of(run)

    assert facts["Steps"] == "5 of 500"
    assert facts["Tool calls"] == "10 2 errors"
    assert facts["Tokens"] == "42 fresh input 8 output 193,753 cache read 27,063 cache write for 1 h"
    assert facts["Cost"].startswith("$0.")
    assert "computed" in facts["Cost"]
    assert "Worker" not in facts
    assert "Ended" in facts


def test_the_facts_of_a_run_that_has_not_started(run: AgentRun) -> None:
    facts = facts_of(run)

    assert facts["Started"] == "not yet"
    assert facts["Duration"] == "–"
    assert facts["Cost"] == "no calls"
    assert facts["Tokens"] == "0 fresh input 0 output"


def test_the_facts_of_a_running_run_name_its_worker_and_count_up(run: AgentRun) -> None:
    claimed(run)
    page = page_of(run)

    assert facts_of(run)["Worker"] == "host:1:abc"
    assert page.element("facts").all("tick")


# --- Miscellaneous ----------------------------------------------------------------------------------------------------


def test_the_back_link_keeps_the_filters_of_the_list(run: AgentRun) -> None:
    client, runs = client_of(run), reverse("runs:list", args=[run.project.slug])

    def back(query: str = "", referer: str = "") -> str:
        headers = {"Referer": referer} if referer else {}
        page = client.get(f"/runs/{run.pk}{query}", headers=headers).content.decode()
        return page.partition('class="back"><a href="')[2].partition('"')[0]

    assert back() == runs
    assert back(f"?back={runs}%3Fstatus%3Dpaused") == f"{runs}?status=paused"
    assert back(referer=f"http://testserver{runs}?status=paused") == f"{runs}?status=paused"
    for evil in ("//evil.test/", "https://evil.test/", "/\\evil.test", "javascript:alert(1)"):
        assert back(f"?back={evil}") == runs
    assert back(referer="https://evil.test/p/x/runs?status=paused") == runs


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 }}{% debug %}"])
def test_titles_and_names_are_text(text: str) -> None:
    agent = make_agent()
    run = make_run(agent, "Look.", title=text, labels=[text])
    config = run.agent_config | {"agent_id": text, "model": text, "provider": text, "version": text}
    AgentRun.objects.filter(pk=run.pk).update(agent_config=config)
    paused(run, by=text, detail=text, reason=PauseReason.ERROR)
    answer = client_of(run).get(f"/runs/{run.pk}").content.decode()

    assert ("<" not in text) or (text not in answer)
    assert page_of(run).element("head").words.count(text) >= 5


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_the_query_count_is_the_same_for_every_length(run: AgentRun) -> None:
    client = client_of(run)

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"/runs/{run.pk}").status_code == 200
        return len(captured)

    told(run, "llm.turn.start", step=1)
    few = queries()
    for step in range(1, 40):
        told(run, "llm.turn.end", {"text": "Yes."}, step=step)
        told(run, "tool.start", {"call_id": "c", "tool_name": "t"}, step=step)
        told(run, "tool.end", {"call_id": "c", "output": "o"}, step=step)
        told(run, "llm.turn.start", step=step + 1)

    # The newest rows may all be without messages, which then need no query.
    assert queries() <= few
    assert few <= 23


def test_a_tool_error_from_an_older_version_is_not_a_failed_model_attempt(run: AgentRun) -> None:
    known = {"run": run, "step_number": 1, "error_type": "error", "message": "no", "created_at": timezone.now()}
    before = run_data_of(with_facts(AgentRun.objects.filter(pk=run.pk)).get()).failed_attempts
    for context in ("tool:call-1", "anything"):
        RunError.objects.create(**known, context=context)

    assert run_data_of(with_facts(AgentRun.objects.filter(pk=run.pk)).get()).failed_attempts == before + 1
