"""Test the inbox of approvals and questions, the gate on a run's page, and the link in an e-mail."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from django.contrib.messages import get_messages
from django.core import mail
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from agentops.accounts import mailing
from agentops.accounts.access import SYSTEM
from agentops.accounts.login.addresses import change_address
from agentops.accounts.memberships import add_member, remove_member
from agentops.accounts.models import Role
from runs.actions import unknown_calls
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunToolCall, Approval, RunCommand
from runs.pages import inbox_page
from tests.support.engine import make_asking
from tests.support.factories import (
    drive,
    make_awaiting_approval,
    make_person,
    make_project,
    make_waiting,
    verify_address,
    with_key,
)
from tests.support.pages import Element, parse
from tests.support.project_rows import external
from tests.support.secret_samples import TOKENS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def run() -> AgentRun:
    return make_awaiting_approval(make_project("alpha"))


def client_of(run: AgentRun, role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(make_person(run.project, role))
    return client


def page(client: Client, url: str = "/p/alpha/approvals") -> Element:
    answer = client.get(url)
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"] or not url.startswith("/approvals/")
    return parse(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def decide(client: Client, run: AgentRun, **fields: str) -> Any:
    call = Approval.objects.get(run=run).call_id
    return client.post(f"/runs/{run.pk}/calls/{call}/decide", fields)


def told(answer: Any) -> tuple[str, str]:
    *_, message = get_messages(answer.wsgi_request)
    return message.level_tag, str(message)


def link_count(body: Element) -> str:
    link = body.find("bell")
    assert link is not None
    return link.attributes["title"]


def forms_to(body: Element, end: str) -> list[Element]:
    return [each for each in body.walk() if each.tag == "form" and each.attributes.get("action", "").endswith(end)]


def test_the_inbox_shows_the_exact_arguments_and_the_count(run: AgentRun) -> None:
    body = page(client_of(run))
    item = body.find(f"approval-{Approval.objects.get(run=run).pk}")
    assert item is not None
    [arguments] = item.all("payload")
    assert json.loads(arguments.text) == AgentRunToolCall.objects.get(run=run, approval__isnull=False).input
    assert "It reads files." in item.text
    assert "requested by an approval rule" in item.text
    assert link_count(body) == "Needs you: 1"
    assert len(forms_to(body, "/decide")) == 4


def test_a_viewer_sees_an_approval_and_cannot_decide(run: AgentRun) -> None:
    client = client_of(run, Role.VIEWER)
    for url in ("/p/alpha/approvals", f"/runs/{run.pk}"):
        assert forms_to(page(client, url), "/decide") == []
    assert decide(client, run, decision="approve").status_code == 403
    assert Approval.objects.get(run=run).state == "pending"


@pytest.mark.parametrize(
    ("place", "where"),
    [
        ("inbox", "/p/alpha/approvals"),
        ("inbox:approval", "/p/alpha/approvals?kind=approval"),
        ("all:approval", "/approvals?kind=approval"),
        ("inbox:&x=1", "/p/alpha/approvals"),
        *(("run", None), ("run:approval", None)),
    ],
)
def test_a_decision_returns_to_its_page(run: AgentRun, place: str, where: str | None) -> None:
    client = client_of(run)
    assert len(forms_to(page(client, f"/runs/{run.pk}"), "/decide")) == 4
    answer = decide(client, run, decision="approve", next=place)
    assert (answer.status_code, answer["Location"]) == (303, where or f"/runs/{run.pk}")
    approval = Approval.objects.get(run=run)
    assert told(answer) == ("success", f"{approval.tool_name} approved. The run continues.")
    assert link_count(page(client)) == "Needs you: nothing"
    again = decide(client, run, decision="deny")
    assert told(again) == ("error", f"Not decided: {approval.decided_by} already approved this call.")


def test_arguments_can_be_edited(run: AgentRun) -> None:
    client = client_of(run)
    assert told(decide(client, run, decision="approve", arguments="[1]"))[1].endswith("must be a JSON object.")
    assert "not JSON" in told(decide(client, run, decision="approve", arguments="{"))[1]
    assert told(decide(client, run, decision="maybe"))[0] == "error"
    assert Approval.objects.get(run=run).state == "pending"
    assert told(decide(client, run, decision="approve", arguments='{"a": 1}'))[0] == "success"
    assert AgentRunToolCall.objects.get(run=run, approval__isnull=False).changed_arguments == {"a": 1}


def test_form_keeps_an_invalid_edit(run: AgentRun, link: str) -> None:
    typed = '{"path": "</textarea>notes.md",}'
    form = {"decision": "approve", "arguments": typed, "next": "inbox"}
    approval, client = Approval.objects.get(run=run), client_of(run)
    for answer in (decide(client, run, **form), Client().post(link, form)):
        body = parse(answer.content.decode())
        field, menu = body.find(f"arguments-{approval.pk}"), body.find(f"approval-{approval.pk}")
        assert answer.status_code == 422
        assert field is not None
        assert field.text.strip() == typed
        assert menu is not None
        assert [each.tag for each in menu.walk() if "open" in each.attributes] == ["details"]
        assert "Not decided: the arguments are not JSON" in body.words
        assert {each.attributes["value"] for each in menu.walk() if each.attributes.get("name") == "next"} == {"inbox"}
    corrected = typed.replace(",", "")
    assert decide(client, run, **{**form, "arguments": corrected}).status_code == 303
    assert AgentRunToolCall.objects.get(run=run, approval__isnull=False).changed_arguments == json.loads(corrected)


def test_invisible_characters_are_displayed_and_survive_an_edit(run: AgentRun) -> None:
    """Text with direction overrides must not deceive the person who approves it."""
    approval = Approval.objects.get(run=run)
    Approval.objects.filter(pk=approval.pk).update(arguments={"command": "safe\u202eevil"})
    body = page(client_of(run))
    field = body.find(f"arguments-{approval.pk}")
    assert field is not None
    assert "\u202e" not in body.text
    assert r"safe\u202eevil" in field.text


def test_secrets_of_arguments_are_masked_on_every_page(run: AgentRun) -> None:
    token = next(iter(TOKENS.values()))()
    Approval.objects.filter(run=run).update(arguments={"key": token}, reason=token, tool_name="tool")
    client = client_of(run)
    for url in ("/p/alpha/approvals", f"/runs/{run.pk}"):
        assert token not in client.get(url).content.decode()


def test_questions_and_unknown_outcomes_are_in_the_same_inbox(run: AgentRun) -> None:
    asking, lost = make_asking(run.project), make_waiting(run.project)
    [call] = unknown_calls.unresolved(lost)
    client = client_of(run)
    body = page(client)
    assert link_count(body) == "Needs you: 3"
    assert [head.words.split()[0] for head in body.all("notice-head")] == ["approval", "question", "unknown"]
    assert "Which one?" in body.text
    only = page(client, "/p/alpha/approvals?kind=question")
    assert [head.words.split()[0] for head in only.all("notice-head")] == ["question"]
    assert len(forms_to(only, f"/runs/{asking.pk}/answer")) == 1
    answer = client.post(f"/runs/{asking.pk}/answer", {"message": "main", "next": "inbox"})
    assert (answer.status_code, answer["Location"]) == (303, "/p/alpha/approvals")
    assert drive(asking).status == "completed"

    assert len(forms_to(body, f"/runs/{lost.pk}/calls/{call.pk}/resolve")) == 3
    viewer = client_of(run, Role.VIEWER)
    assert forms_to(page(viewer, "/p/alpha/approvals?kind=unknown_outcome"), "/resolve") == []
    answer = client.post(f"/runs/{lost.pk}/calls/{call.pk}/resolve", {"choice": "done", "next": "all"})
    assert (answer.status_code, answer["Location"]) == (303, "/approvals")
    assert len(page(client).all("notice-head")) == 1
    assert [client.get(f"/approvals?{bad}").status_code for bad in ("kind=x", "after=x")] == [400, 400]


def test_forms_of_a_filtered_inbox_return_to_it(run: AgentRun) -> None:
    client = client_of(run)
    for url, back in (("/p/alpha/approvals?kind=approval", "inbox:approval"), ("/approvals", "all")):
        body = page(client, url)
        assert {each.attributes["value"] for each in body.walk() if each.attributes.get("name") == "next"} == {back}


def test_two_people_may_answer_a_question_from_the_inbox(run: AgentRun) -> None:
    """Both get a form with the same key, which prevents duplicates from a double click of one person."""
    asking = make_asking(run.project)
    oscar, bob = client_of(asking), client_of(asking)
    [form] = forms_to(page(oscar, "/p/alpha/approvals?kind=question"), "/answer")
    key = next(each.attributes["value"] for each in form.walk() if each.attributes.get("name") == "key")

    def answer(client: Client, text: str) -> tuple[str, str]:
        return told(client.post(f"/runs/{asking.pk}/answer", {"message": text, "key": key, "next": "inbox"}))

    assert answer(oscar, "This one.") == ("success", "Answer sent. The run continues.")
    as_message = ("info", "The question was already answered. The agent receives your answer as a message.")
    assert answer(bob, "That one.") == as_message
    assert answer(bob, "That one.") == as_message
    assert [c.payload["message"] for c in RunCommand.objects.filter(run=asking).order_by("received_at")] == [
        "This one.",
        "That one.",
    ]
    problem = "Not answered: this form was sent before, with another text. Reload the page to send a further one."
    assert answer(oscar, "Neither.") == ("error", problem)


def test_a_long_inbox_is_paginated(run: AgentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run, make_asking(run.project), make_waiting(run.project)]
    monkeypatch.setattr(inbox_page, "PAGE_SIZE", 2)
    client = client_of(run)
    first = page(client)
    [later] = [each for each in first.walk() if each.words == "Show later ones" and each.tag == "a"]
    second = page(client, later.attributes["href"])
    titles = [each.attributes["href"] for body in (first, second) for each in body.all("notice-title")]
    assert titles == [f"/runs/{each.pk}" for each in runs]
    assert "Show later ones" not in second.text


def test_one_inbox_has_the_runs_of_all_projects_of_a_person(run: AgentRun) -> None:
    """Entries have age and expiry. Forms appear only where the person may decide."""
    watched, foreign = (make_awaiting_approval(make_project(slug)) for slug in ("watched", "foreign"))
    person = make_person(run.project, Role.OPERATOR)
    add_member(watched.project, person, Role.VIEWER, actor=SYSTEM)
    client = Client()
    client.force_login(person)
    body = page(client, "/approvals")

    heads = [head.words for head in body.all("notice-head")]
    assert [next(name for name in ("Alpha", "Watched", "Foreign") if name in head) for head in heads] == [
        "Alpha",
        "Watched",
    ]
    assert all(" · for " in head and "expires" in head for head in heads)
    assert len(forms_to(body, "/decide")) == len(forms_to(body, f"/runs/{run.pk}/calls/{_call(run)}/decide")) == 4
    answer = decide(client, run, decision="approve", next="all")
    assert (answer.status_code, answer["Location"]) == (303, "/approvals")
    assert decide(client, watched, decision="approve").status_code == 403
    assert decide(client, foreign, decision="approve").status_code == 404
    assert "Show all projects" in page(client).text
    assert Client().get("/approvals").status_code == 302
    assert Client().get("/approvals", headers=with_key(run.project, "read", "write")).status_code == 302


def _call(run: AgentRun) -> UUID:
    return Approval.objects.get(run=run).call_id


@pytest.fixture
def link(run: AgentRun, settings: Settings) -> str:
    """Return the link in the e-mail to an operator."""
    settings.AGENTOPS_EMAIL = True
    person = make_person(run.project, Role.OPERATOR)
    person.email = "oscar@example.com"
    person.save()
    verify_address(person)
    mailing.send_due()
    [letter] = [each for each in mail.outbox if "Approval of" in each.subject]
    path = next(word for word in str(letter.body).split() if "/approvals/" in word and "/p/" not in word)
    return path.removeprefix(settings.AGENTOPS_BASE_URL)


def test_opening_the_link_of_an_email_shows_the_call_and_changes_nothing(run: AgentRun, link: str) -> None:
    assert len(forms_to(page(Client(), link), link)) == 4
    assert Approval.objects.get(run=run).state == "pending"


def test_a_post_to_the_link_decides_as_its_recipient(run: AgentRun, link: str) -> None:
    anybody = Client()
    assert anybody.post(link, {"decision": "deny", "message": "No."}).status_code == 303
    approval = Approval.objects.get(run=run)
    assert approval.state == "denied"
    assert approval.decided_by.startswith("user:")
    body = page(anybody, link)
    assert "This call is denied by" in body.words
    assert forms_to(body, link) == []
    anybody.post(link, {"decision": "approve"})
    assert Approval.objects.get(run=run).state == "denied"


def test_a_link_requires_a_valid_token_and_the_right_to_approve(run: AgentRun, link: str) -> None:
    client = Client(enforce_csrf_checks=True)
    assert client.post(link, {"decision": "approve"}).status_code == 403
    notification = Approval.objects.get(run=run).notification_id
    assert notification is not None
    viewer = make_person(run.project, Role.VIEWER)
    for bad in (link[:-1] + ("a" if link[-1] != "a" else "b"), mailing.approval_path(notification, viewer)):
        assert Client().post(bad, {"decision": "approve"}).status_code == 404
    token = reverse("runs:approval-link", args=["x"])
    assert Client().get(token).status_code == 404
    read = mailing.read_approval_link(link.rpartition("/")[2])
    assert read is not None
    recipient = read[1]
    # The link works only while its e-mail address is the verified address of the recipient.
    for email in ("other@example.com", "oscar@example.com"):
        change_address(recipient, email, actor="test")
        assert Client().get(link).status_code == 404
    verify_address(recipient)
    assert Client().get(link).status_code == 200
    remove_member(run.project, recipient, actor="test")
    assert Client().get(link).status_code == 404
    assert Approval.objects.get(run=run).state == "pending"


def test_a_link_of_a_stopped_run_shows_that_the_call_is_cancelled(run: AgentRun, link: str) -> None:
    inbox.stop(run.pk, by="user:bob")
    assert "This call is cancelled" in Client().get(link).content.decode()


def test_an_external_session_links_to_its_run_and_can_be_dismissed(run: AgentRun) -> None:
    waits = {"type": "run.waiting", "payload": {"reason": "approval"}}
    session = external(run.project, "claude", waits)
    AgentRun.objects.filter(pk=session.pk).update(labels=["host:laptop", "other:label"])
    entry = page(client_of(run), "/p/alpha/approvals?kind=session").find(f"entry-{session.pk}")
    assert entry is not None
    assert "Waits for a permission. The permission is given where the agent runs, not here." in entry.text
    assert "host:laptop" in entry.text
    assert "other:label" not in entry.text
    [link] = [each for each in entry.walk() if each.text == "Show run"]
    assert link.attributes["href"] == f"/runs/{session.pk}"
    assert [form.attributes["action"] for form in forms_to(entry, "")] == [f"/runs/{session.pk}/dismiss"]
    assert link_count(page(client_of(run))) == "Needs you: 2"
    viewer = page(client_of(run, Role.VIEWER), "/p/alpha/approvals?kind=session")
    assert "Show run" in viewer.text
    assert forms_to(viewer, "/dismiss") == []

    client_of(run).post(f"/runs/{session.pk}/dismiss", {"next": "inbox"})
    assert link_count(page(client_of(run))) == "Needs you: 1"
    external(run.project, "claude", {"type": "llm.text", "payload": {"text": "Going on."}}, waits)
    assert link_count(page(client_of(run))) == "Needs you: 2"
    external(run.project, "claude", {"type": "run.phase", "payload": {"status": "running"}})
    assert link_count(page(client_of(run))) == "Needs you: 1"
