"""Test resolving an unknown outcome on the run's page: permissions, choices, and the card."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client

from agentops.accounts.models import Role
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import Effect
from tests.support.factories import drive, make_person, make_waiting
from tests.support.pages import Element, parse
from tests.support.recordings import import_content

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def run() -> AgentRun:
    return make_waiting()


@pytest.fixture
def operator(run: AgentRun) -> Client:
    return client_of(run)


def client_of(run: AgentRun, role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(make_person(run.project, role))
    return client


def lost_call(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.get(run=run, status="unknown")


def say(client: Client, run: AgentRun, call: AgentRunToolCall, **fields: str) -> Any:
    return client.post(f"/runs/{run.pk}/calls/{call.pk}/resolve", fields)


def told(answer: Any) -> tuple[str, str]:
    *_, message = get_messages(answer.wsgi_request)
    return message.level_tag, str(message)


def body_of(client: Client, url: str) -> Element:
    answer = client.get(url)
    assert answer.status_code == 200
    return parse(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def forms_of(body: Element, call: AgentRunToolCall) -> dict[str, Element]:
    """Return the forms by choice. Check that each can be submitted."""
    found: dict[str, Element] = {}
    for form in body.walk():
        if form.tag == "form" and form.attributes.get("action", "").endswith(f"/calls/{call.pk}/resolve"):
            fields = {
                each.attributes.get("name", ""): each for each in form.walk() if each.tag in ("input", "textarea")
            }
            assert fields["csrfmiddlewaretoken"].attributes["value"]
            assert form.attributes["method"] == "post"
            found[fields["choice"].attributes["value"]] = form
    return found


def card_of(page: Element, call: AgentRunToolCall) -> Element:
    found = page.find(f"call-{call.pk}")
    assert found is not None
    return found


# --- Choices --------------------------------------------------------------------------------------------------------


def test_the_banner_offers_three_choices(run: AgentRun, operator: Client) -> None:
    call = lost_call(run)
    body = body_of(operator, f"/runs/{run.pk}")

    [banner] = [each for each in body.all("banner") if "Unknown outcome of a tool call" in each.text]
    assert set(forms_of(banner, call)) == {"done", "failed", "retry"}
    assert call.tool_name in banner.text
    assert "not safe to repeat" in forms_of(banner, call)["retry"].text
    assert banner.find(f"outcome-{call.pk}") is not None


@pytest.mark.parametrize("effect", list(Effect))
def test_only_calls_that_must_not_be_repeated_require_a_confirmation(
    run: AgentRun, operator: Client, effect: Effect
) -> None:
    AgentRunToolCall.objects.filter(run=run, status="unknown").update(effect=effect, idempotency_key=None)
    if effect is Effect.IDEMPOTENT:
        AgentRunToolCall.objects.filter(run=run, status="unknown").update(idempotency_key="k")
    call = lost_call(run)

    body = body_of(operator, f"/runs/{run.pk}")

    place = body.find(f"outcome-{call.pk}")
    assert place is not None
    behind = [each.attributes["data-key"] for each in place.walk() if each.tag == "details"]
    assert (f"retry-{call.pk}" in behind) is (effect is Effect.AT_MOST_ONCE)
    assert set(forms_of(body, call)) == {"done", "failed", "retry"}


def test_a_viewer_sees_the_call_and_no_form(run: AgentRun) -> None:
    call = lost_call(run)
    body = body_of(client_of(run, Role.VIEWER), f"/runs/{run.pk}")

    assert forms_of(body, call) == {}
    place = body.find(f"outcome-{call.pk}")
    assert place is not None
    assert "Requires the role operator" in place.text
    assert say(client_of(run, Role.VIEWER), run, call, choice="done").status_code == 403


@pytest.mark.parametrize("query", ["", "?show=tools"])
def test_the_card_links_to_the_choices(run: AgentRun, operator: Client, query: str) -> None:
    call = lost_call(run)
    body = body_of(operator, f"/runs/{run.pk}{query}")

    card = card_of(body, call)
    assert "is-unknown" in card.classes
    assert "Unknown outcome" in card.words
    [link] = [each.attributes["href"] for each in card.walk() if "Resolve outcome" in each.text and each.tag == "a"]
    assert body.find(link.removeprefix("#")) is not None


# --- Resolving ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "output"),
    [
        ({"choice": "done", "text": "3 rows\r\nand more"}, "completed", "3 rows\nand more"),
        ({"choice": "done", "text": " "}, "completed", "The call succeeded. Its output is not known."),
        ({"choice": "failed", "text": "no such table"}, "error", "no such table"),
    ],
    ids=["done", "done without a word", "failed"],
)
def test_resolving_an_outcome_continues_the_run(
    run: AgentRun, operator: Client, fields: dict[str, str], status: str, output: str
) -> None:
    call = lost_call(run)

    answer = say(operator, run, call, **fields)

    assert (answer.status_code, answer["Location"]) == (303, f"/runs/{run.pk}")
    assert told(answer) == ("success", "Outcome recorded. The run continues.")
    assert AgentRun.objects.get(pk=run.pk).status == "queued"
    call.refresh_from_db()
    assert (call.status, call.output) == (status, output)
    card = card_of(body_of(operator, f"/runs/{run.pk}"), call)
    assert f"is-{status}" in card.classes
    assert "Resolve outcome" not in card.text
    assert drive(run).status == "completed"


def test_a_call_can_be_run_again(run: AgentRun, operator: Client) -> None:
    call = lost_call(run)

    assert told(say(operator, run, call, choice="retry")) == ("success", "Outcome recorded. The tool call runs again.")

    assert "is-planned" in card_of(body_of(operator, f"/runs/{run.pk}"), call).classes
    assert drive(run).status == "completed"
    card = card_of(body_of(operator, f"/runs/{run.pk}"), call)
    assert "is-completed" in card.classes
    assert "started 2 times" in card.text


def test_a_second_choice_reports_the_first(run: AgentRun, operator: Client) -> None:
    call = lost_call(run)
    say(operator, run, call, choice="done", text="here")

    assert told(say(operator, run, call, choice="done", text="here")) == ("success", "Outcome already recorded.")
    level, text = told(say(client_of(run), run, call, choice="retry"))
    assert level == "error"
    assert text.startswith("Outcome not saved: user:oscar-")
    assert text.endswith("already resolved this call as done.")


@pytest.mark.parametrize("choice", ["", "maybe", "DONE"])
def test_an_unknown_choice_is_refused(run: AgentRun, operator: Client, choice: str) -> None:
    assert told(say(operator, run, lost_call(run), choice=choice))[0] == "error"
    assert AgentRun.objects.get(pk=run.pk).status == "waiting"


def test_a_paused_run_offers_no_choices(run: AgentRun, operator: Client) -> None:
    call = lost_call(run)
    inbox.pause(run.pk, by="oscar")

    assert forms_of(body_of(operator, f"/runs/{run.pk}"), call) == {}
    assert (
        "he run is paused, so the outcome of this call stays unknown"
        in told(say(operator, run, call, choice="done"))[1]
    )


@pytest.mark.parametrize("level", ["DEFAULT", "ERROR"])
def test_a_recorded_call_without_a_result_does_not_mention_a_lost_worker(level: str) -> None:
    use = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    generation = {
        "id": "g",
        "traceId": "t",
        "type": "GENERATION",
        "startTime": "2026-01-05T10:00:00Z",
        "level": level,
        "parentObservationId": None,
        "input": "Go",
        "output": {"role": "assistant", "tool_calls": [use]},
    }
    [run] = import_content({"id": f"trace-{level}", "observations": [generation]})
    client = Client()
    client.force_login(make_person(run.project))

    page = " ".join(client.get(f"/runs/{run.pk}").content.decode().split())

    assert "Unknown outcome: the record has no result of this call." in page
    assert ("The record has no result of it. The call may have taken effect." in page) is (level == "ERROR")
    assert "worker stopped" not in page
