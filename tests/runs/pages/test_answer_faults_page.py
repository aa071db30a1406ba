"""Test the pages of a run whose answer was cut off or refused: banner, timeline, conversation and lists."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

import pytest
from django.test import Client

from agentops.accounts.models import Role
from runs.actions import agent_definitions
from runs.models import Agent, AgentRun, AgentRunMessage
from runs.providers.streaming_provider import AnswerEnd
from tests.support.engine import TOOLS, saying, with_policies
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.pages import Element, ParsedPage, form_values, parse
from tests.support.scripted_model import PLAYS, Move

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
HOSTILE = "<script>alert(1)</script>\n{{ 7|add:7 }}"
CUT, REFUSED = AnswerEnd("max_tokens"), AnswerEnd("refusal", HOSTILE)
#: The end of an answer → the words of its banner, of its effect, and of its chips.
FAULTS = {
    "cut": (CUT, "Paused: answer cut off", "continues after what the model has written", "cut off"),
    "refused": (REFUSED, "Paused: answer refused", "does not send the refused answer again", "refused"),
}
faults = pytest.mark.parametrize("fault", list(FAULTS))


def ready(*turns: Iterable[Move], **policies: Any) -> AgentRun:
    PLAYS["of-the-answer"] = saying(*turns)
    settings = {"play": "of-the-answer"}
    agent = make_agent(provider="scripted", model="scripted-model", settings=settings, tools=TOOLS)
    return with_policies(make_run(agent, "Go."), **policies)


def paused(fault: str) -> AgentRun:
    run = drive(ready(["Half", FAULTS[fault][0]], ["Whole."]))
    assert run.status == "paused"
    return run


def client_of(run: AgentRun, role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(make_person(run.project, role))
    return client


def body_of(client: Client, url: str) -> ParsedPage:
    answer = client.get(url)
    assert answer.status_code == 200
    assert b"<script>alert" not in answer.content
    return ParsedPage(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def head(client: Client, run: AgentRun) -> Element:
    answer = client.get(f"/runs/{run.pk}/head")
    assert answer.status_code == 200
    return parse(answer.content.decode())


def chips(element: Element) -> list[str]:
    return [chip.words for chip in element.all("chip-warn")]


@faults
def test_the_banner_explains_the_effect_of_a_resume(fault: str) -> None:
    run = paused(fault)
    [banner] = head(client_of(run), run).all("banner")

    _, title, effect, _ = FAULTS[fault]
    assert banner.words.startswith(title)
    assert effect in banner.words
    assert run.error_message.split("\n")[0] in banner.words
    links = [each.attributes["href"] for each in banner.walk() if each.words == "Show the answer" and each.tag == "a"]
    assert links == [f"/runs/{run.pk}?event={run.log.events.get(type='llm.turn.end').seq}#target"]


@faults
def test_the_form_of_the_banner_resumes_the_run(fault: str) -> None:
    run = paused(fault)
    client = client_of(run)
    [banner] = head(client, run).all("banner")
    [form] = [each for each in banner.walk() if each.tag == "form"]
    assert "Resume run" in form.words

    answer = client.post(form.attributes["action"], {"message": "Go on briefly."})

    assert answer.status_code == 303
    new = AgentRun.objects.get(resumed_from=run)
    assert answer["Location"] == f"/runs/{new.pk}"
    assert drive(new).result == "Whole."
    assert "Go on briefly." in body_of(client, f"/runs/{new.pk}/messages").element("main").words


def test_a_viewer_gets_no_form() -> None:
    run = paused("cut")
    [banner] = head(client_of(run, Role.VIEWER), run).all("banner")

    assert [each for each in banner.walk() if each.tag == "form"] == []
    assert "operator" in banner.words.lower()


@pytest.mark.parametrize(("policy", "text"), [("on_cut", "Answer cut off"), ("on_refused", "Answer refused")])
def test_a_wait_for_the_policy_is_named(policy: str, text: str) -> None:
    end = CUT if policy == "on_cut" else REFUSED
    run = drive(ready(["Half", end], **{policy: {"action": "resume", "cooldown": "5m"}}))
    assert (run.status, run.status_reason) == ("waiting", policy)
    client = client_of(run)
    [banner] = head(client, run).all("banner")

    assert banner.words.startswith(f"{text}: a policy resumes the run")
    assert any("the policy resumes the run" in row.words for row in body_of(client, f"/runs/{run.pk}").rows)


@faults
def test_timeline_and_conversation_mark_the_answer(fault: str) -> None:
    run = paused(fault)
    client, chip = client_of(run), FAULTS[fault][3]
    page = body_of(client, f"/runs/{run.pk}")
    [card] = [row for row in page.rows if row.words.startswith("Assistant")]
    assert chips(card) == [chip]
    assert run.error_message.split("\n")[0] in page.element("live").words

    conversation = body_of(client, f"/runs/{run.pk}/messages").element("main")
    assert chips(conversation) == [chip]
    assert ("Refusal" in conversation.words) is (fault == "refused")
    assert ("<script>alert(1)</script>" in conversation.words) is (fault == "refused")

    message = AgentRunMessage.objects.get(run=run, role="assistant")
    facts = body_of(client, f"/runs/{run.pk}/messages/{message.pk}").element("main").words
    assert {"cut": "length: cut off", "refused": "content_filter: refused"}[fault] in facts


def test_a_whole_answer_has_no_mark() -> None:
    run = drive(ready(["Whole.", AnswerEnd("end_turn")]))
    client = client_of(run)
    assert run.status == "completed"
    for url in ("", "/messages"):
        assert chips(body_of(client, f"/runs/{run.pk}{url}").element("main")) == []


@faults
def test_it_needs_a_person(fault: str) -> None:
    run = paused(fault)
    client = client_of(run)
    _, _, effect, _ = FAULTS[fault]
    entries = body_of(client, f"/p/{run.project.slug}/approvals?kind=paused").element("main").words

    assert effect in entries
    assert {"cut": "answer cut off", "refused": "answer refused"}[fault] in entries.lower()
    assert "Needs you: 1" in client.get(f"/runs/{run.pk}").content.decode()


@faults
def test_the_list_of_runs_filters_by_the_reason(fault: str) -> None:
    run = paused(fault)
    other = drive(make_run(make_agent(run.project), "Other."))
    client = client_of(run)
    page = client.get(f"/p/{run.project.slug}/runs?status=paused&reason={run.status_reason}").content.decode()

    assert f"/runs/{run.pk}" in page
    assert f"/runs/{other.pk}" not in page
    assert {"cut": "answer cut off", "refused": "answer refused"}[fault] in page
    nothing = client.get(f"/p/{run.project.slug}/runs?reason=max_steps").content.decode()
    assert f"/runs/{run.pk}" not in nothing


@faults
def test_exports_have_the_reason(fault: str) -> None:
    run = paused(fault)
    client = client_of(run)
    report = client.get(f"/runs/{run.pk}/export/html").getvalue().decode()
    messages = csv.DictReader(io.StringIO(client.get(f"/runs/{run.pk}/export/messages").getvalue().decode()))

    assert f"UTC · {FAULTS[fault][3]}" in report
    name = {"cut": "length", "refused": "content_filter"}[fault]
    assert [row["finish_reason"] for row in messages] == ["", name]


def test_the_form_of_an_agent_has_the_policies() -> None:
    project = make_project("alpha")
    agent_definitions.apply(
        project, {"agent_id": "writer", "provider": "fixture", "model": "claude-code-5c"}, by="test"
    )
    client = Client()
    client.force_login(make_person(project, Role.ADMIN))
    url = "/p/alpha/agents/writer/edit"
    values = form_values(client.get(url).content.decode(), "agent-form")
    for policy in ("on_cut", "on_refused"):
        page = client.post(url, {**values, "do": f"add:{policy}"})
        values = form_values(page.content.decode(), "agent-form")
    changes = {"on_cut-0-action": "resume", "on_cut-0-attempts": "3", "on_refused-0-action": "accept"}

    assert client.post(url, {**values, **changes, "do": "save"}).status_code == 303
    policies = Agent.objects.get(slug="writer").frozen()["policies"]
    assert policies == {"on_cut": {"action": "resume", "attempts": 3}, "on_refused": {"action": "accept"}}
    shown = client.get("/p/alpha/agents/writer").content.decode()
    assert "On a cut answer" in shown
    assert "On a refused answer" in shown
    refused = client.post(url, {**values, **changes, "on_cut-0-action": "gate", "do": "save"})
    assert refused.status_code == 422
    assert "a gate" in refused.content.decode()
