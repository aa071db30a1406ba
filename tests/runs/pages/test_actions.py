"""Test resume, pause, stop and send on a run's page: effects, refusals and audit entries."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from agentops.accounts.models import AuditEntry, Project, Role
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, RunCommand
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.pages import parse

ACTIONS = ["resume", "pause", "stop", "send"]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def run(project: Project) -> AgentRun:
    return make_run(make_agent(project))


@pytest.fixture
def operator(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.OPERATOR))
    return client


def act(client: Client, action: str, run: AgentRun, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return client.post(f"/runs/{run.pk}/{action}", fields, headers=headers)


def page_of(run: AgentRun) -> str:
    return reverse("runs:detail", args=[run.pk])


def told(answer: Any) -> tuple[str, str]:
    """Return the level and text of the last message that the next page will show."""
    *_, message = get_messages(answer.wsgi_request)
    return message.level_tag, str(message)


def now(run: AgentRun) -> AgentRun:
    return AgentRun.objects.get(pk=run.pk)


def running(run: AgentRun) -> AgentRun:
    """Claim the run for a worker."""
    assert transitions.claim(run.pk, "worker")
    return now(run)


def trail() -> list[tuple[Any, ...]]:
    entries = AuditEntry.objects.filter(action__startswith="run.").order_by("created_at")
    return [(entry.action, entry.actor, entry.object_id, entry.before, entry.after) for entry in entries]


def typed_into(page: Any) -> list[str]:
    """Return the keys that static/js/keep.js uses to restore input when a part of the page is loaded again."""
    fields = [each for each in page.walk() if each.tag in ("textarea", "select", "input")]
    shown = [each for each in fields if each.attributes.get("type") not in ("hidden", "submit")]
    return [each.attributes.get("data-key") or each.attributes["name"] for each in shown]


# --- Effects -----------------------------------------------------------------------------------------------------


def test_pause_and_resume(run: AgentRun, operator: Client) -> None:
    answer = act(operator, "pause", run)
    assert (answer.status_code, answer["Location"]) == (303, page_of(run))
    assert told(answer) == ("success", "Run paused.")
    assert (now(run).status, now(run).status_reason) == ("paused", "operator")

    answer = act(operator, "resume", run)
    new = AgentRun.objects.get(resumed_from=run)
    assert (answer.status_code, answer["Location"]) == (303, page_of(new))
    assert told(answer)[0] == "success"
    assert now(run).status == "resumed"
    assert drive(new).status == "completed"


def test_actions_on_a_running_run_are_requested(run: AgentRun, operator: Client) -> None:
    running(run)

    assert told(act(operator, "pause", run)) == ("info", "Pause requested.")
    assert told(act(operator, "stop", run)) == ("info", "Stop requested.")
    assert [(c.type, c.applied_at) for c in inbox.pending_commands(run.pk)] == [("pause", None), ("stop", None)]


def test_stop(run: AgentRun, operator: Client) -> None:
    assert told(act(operator, "stop", run)) == ("success", "Run stopped.")
    assert now(run).status == "stopped"


def test_send(run: AgentRun, operator: Client) -> None:
    answer = act(operator, "send", run, message="Look\r\nagain")

    assert told(answer) == ("success", "Message sent. The agent receives it before its next model call.")
    [command] = RunCommand.objects.filter(run=run)
    assert (command.type, command.payload) == ("send", {"message": "Look\nagain"})
    assert command.created_by.startswith("user:oscar-")
    inbox.pause(run.pk, by="test")
    assert "after the run is resumed" in told(act(operator, "send", run, message="And again"))[1]


def test_form_keeps_input_after_the_head_is_reloaded(run: AgentRun, operator: Client) -> None:
    """An open page reloads its head every few seconds. A paused run has a field for a message in two forms."""
    inbox.pause(run.pk, by="test")
    keys = typed_into(parse(operator.get(f"/runs/{run.pk}/head").content.decode()))

    assert {"resume-message", "send-message"} < set(keys)
    assert len(keys) == len(set(keys))


def test_the_message_field_and_the_server_have_the_same_limit(run: AgentRun, operator: Client) -> None:
    inbox.pause(run.pk, by="test")
    head = parse(operator.get(f"/runs/{run.pk}/head").content.decode())
    fields = [each for each in head.walk() if each.tag == "textarea"]

    assert {each.attributes["name"] for each in fields} == {"message"}
    assert {each.attributes.get("maxlength") for each in fields} == {str(inbox.MAX_MESSAGE)}
    for action in ("resume", "send"):
        assert act(operator, action, run, message="x" * (inbox.MAX_MESSAGE + 1)).status_code == 303
    assert AgentRun.objects.count() == 1


def test_every_message_field_has_the_limit_of_the_server() -> None:
    """Check the fields for resume, send, answer, deny, and resolve."""
    fields: dict[str, list[str]] = {"message": [], "text": []}
    for path in (settings.BASE_DIR / "templates" / "runs").rglob("*.html"):
        for field in re.findall(r"<textarea[^>]*>", path.read_text()):
            for name, found in fields.items():
                if f'name="{name}"' in field:
                    found.append(field)

    # The message of a fork is a field of ForkForm.
    assert len(fields["message"]) == 9
    assert [field for field in fields["message"] if " maxlength=" not in field] == []
    # Definitions of agents and flows have no limit on characters.
    unlimited = [field for field in fields["text"] if " maxlength=" not in field]
    assert {re.findall(r'id="([^"]*)"', field)[0] for field in unlimited} == {"flow-text", "agent-text"}


def test_a_form_submitted_twice_sends_its_message_once(run: AgentRun, operator: Client) -> None:
    key = str(uuid4())
    for _ in range(2):
        act(operator, "send", run, message="once", key=key)
    act(operator, "send", run, message="once")

    assert RunCommand.objects.filter(run=run).count() == 2
    assert told(act(operator, "send", run, message="x", key="'; --"))[0] == "error"


def test_resume_with_a_message_and_a_budget(run: AgentRun, operator: Client) -> None:
    inbox.pause(run.pk, by="test")

    act(operator, "resume", run, message="Go on\r\nhere", max_steps=" 3 ")

    new = AgentRun.objects.get(resumed_from=run)
    assert (new.prompt, new.max_steps, new.starts_fresh) == ("Go on\nhere", 3, False)


def test_resume_can_start_over(run: AgentRun, operator: Client) -> None:
    inbox.pause(run.pk, by="test")

    act(operator, "resume", run, message="Begin", replace="on")

    assert AgentRun.objects.get(resumed_from=run).starts_fresh


def test_resume_of_a_resumed_run_redirects_to_the_run_that_continues_it(run: AgentRun, operator: Client) -> None:
    inbox.pause(run.pk, by="test")
    first = act(operator, "resume", run)

    again = act(operator, "resume", run)

    assert (again.status_code, again["Location"]) == (303, first["Location"])
    assert told(again)[0] == "info"
    assert AgentRun.objects.filter(resumed_from=run).count() == 1


def test_pausing_and_stopping_twice_has_one_effect(run: AgentRun, operator: Client) -> None:
    for action, status in (("pause", "Run paused."), ("stop", "Run stopped.")):
        assert told(act(operator, action, run)) == ("success", status)
        events = run.log.events.count()
        assert told(act(operator, action, run)) == ("success", status)
        assert run.log.events.count() == events


def test_htmx_requests_are_redirected(run: AgentRun, operator: Client) -> None:
    answer = act(operator, "pause", run, headers={"HX-Request": "true"})

    assert (answer.status_code, answer["HX-Redirect"]) == (200, page_of(run))
    refused = act(operator, "send", run, headers={"HX-Request": "true"}, message=" ")
    assert (refused.status_code, refused["HX-Redirect"]) == (200, page_of(run))


# --- Refusals ----------------------------------------------------------------------------------------------------


REFUSALS: list[tuple[str, dict[str, str], str, str]] = [
    ("resume", {}, "queued", "Not resumed: only paused runs can be resumed; this one is queued."),
    ("resume", {}, "completed", "Not resumed: only paused runs can be resumed; this one is completed."),
    ("resume", {"message": "  \r\n"}, "paused", "Not resumed: the message must not be empty"),
    ("resume", {"message": "x" * 200_001}, "paused", "Not resumed: a message must have at most 200000 characters."),
    ("resume", {"replace": "on"}, "paused", "Not resumed: starting over requires a message"),
    ("resume", {"max_steps": "0"}, "paused", "Not resumed: max_steps must be a whole number from 1 to 500."),
    ("resume", {"max_steps": "x"}, "paused", "Not resumed: max_steps must be a whole number from 1 to 500."),
    ("pause", {}, "completed", "Not paused: a completed run accepts no commands."),
    ("stop", {}, "completed", "Not stopped: a completed run accepts no commands."),
    ("send", {"message": "x"}, "completed", "Not sent: a completed run accepts no commands."),
    ("send", {}, "queued", "Not sent: the message must not be empty."),
    ("send", {"message": " \r\n "}, "queued", "Not sent: the message must not be empty."),
    ("send", {"message": "x" * 200_001}, "queued", "Not sent: a message must have at most 200000 characters."),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: f"{case[0]} {case[2]}")
def test_a_refusal_redirects_to_the_run(
    case: tuple[str, dict[str, str], str, str], run: AgentRun, operator: Client
) -> None:
    action, fields, status, reason = case
    if status == "completed":
        drive(run)
    elif status == "paused":
        inbox.pause(run.pk, by="test")
    commands, events = RunCommand.objects.count(), run.log.events.count()

    answer = act(operator, action, run, **fields)

    assert (answer.status_code, answer["Location"]) == (303, page_of(run))
    level, text = told(answer)
    assert level == "error"
    assert text.startswith(reason)
    assert now(run).status == status
    assert (RunCommand.objects.count(), run.log.events.count(), AgentRun.objects.count()) == (commands, events, 1)
    assert not trail()


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_the_step_limit_of_a_lineage_is_named(run: AgentRun, operator: Client, settings: Any) -> None:
    inbox.pause(run.pk, by="test")
    AgentRun.objects.filter(pk=run.pk).update(step_count=500)

    assert told(act(operator, "resume", run)) == (
        "error",
        "Not resumed: the lineage has used all of its 500 steps.",
    )


def test_a_banner_shows_text_only(run: AgentRun, operator: Client, project: Project) -> None:
    """The user's name and input are never markup on the next page."""
    act(operator, "send", run, message=" ", key="<script>alert(1)</script>")

    page = operator.get("/p/alpha/runs").content.decode()

    assert "<script>alert" not in page
    assert "banner-error" in page


@pytest.mark.parametrize("action", ACTIONS)
def test_get_requests_have_no_effect(action: str, run: AgentRun, operator: Client) -> None:
    assert operator.get(f"/runs/{run.pk}/{action}").status_code == 405
    assert now(run).status == "queued"


@pytest.mark.parametrize("action", ACTIONS)
def test_every_form_requires_its_csrf_token(action: str, run: AgentRun, project: Project) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(make_person(project, Role.OPERATOR))

    refused = act(browser, action, run, message="x")
    assert refused.status_code == 403
    assert b"csrf_failed" in refused.content
    assert (now(run).status, RunCommand.objects.count()) == ("queued", 0)

    browser.get("/p/alpha/runs")
    token = browser.cookies["csrftoken"].value
    foreign = act(browser, action, run, {"X-CSRFToken": token, "Origin": "https://evil.example"}, message="x")
    assert foreign.status_code == 403
    assert act(browser, action, run, {"X-CSRFToken": token}, message="x").status_code == 303


# --- Audit -------------------------------------------------------------------------------------------------------


def test_resume_and_stop_are_audited(run: AgentRun, operator: Client) -> None:
    act(operator, "pause", run)
    act(operator, "resume", run)
    act(operator, "resume", run)
    new = AgentRun.objects.get(resumed_from=run)
    act(operator, "stop", new)
    act(operator, "stop", new)

    actor = trail()[0][1]
    assert actor.startswith("user:oscar-")
    assert trail() == [
        ("run.resumed", actor, str(run.pk), {"status": "paused"}, {"status": "resumed", "resumed_as": str(new.pk)}),
        ("run.stopped", actor, str(new.pk), {"status": "queued"}, {"status": "stopped", "asked": "stop"}),
    ]
    assert {(entry.ip, entry.project_id) for entry in AuditEntry.objects.filter(action__startswith="run.")} == {
        ("127.0.0.1", run.project_id)
    }
