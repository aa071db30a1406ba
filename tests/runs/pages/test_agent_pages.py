"""Test the pages of agents: the list, an agent with its versions, and the forms that create and change an agent."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import AuditEntry, Project, Role
from runs.actions import agent_definitions
from runs.external.ingest import Sender, record
from runs.models import Agent, AgentRun, AgentVersion
from runs.pages.agents import agents_page
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.pages import form_values

KEY = "sk-ant-api03-" + "A" * 60
DEFINITION: dict[str, Any] = {
    "agent_id": "reviewer",
    "provider": "fixture",
    "model": "claude-code-5c",
    "instructions": "Review.\nBe brief.",
    "tools": ["recorded", "ask_user"],
    "max_steps": 20,
    "settings": {"budgets": {"tokens": 1000, "cost_usd": "1.50"}, "pace": 1.5, "note": KEY},
    "policies": {
        "on_error": [{"match": "rate_limited", "action": "resume", "attempts": "forever"}, "escalate"],
        "on_prompt": "escalate",
        "on_crash": "roll_back",
        "hooks": [{"hook": "command_guard", "tools": "shell", "options": {"allow": ["git"]}}],
        "approvals": [{"tools": "deploy", "arguments": {"environment": "^prod"}, "action": "ask", "expires": "2h"}],
    },
}


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def admin(project: Project) -> Client:
    return client_of(project, Role.ADMIN)


@pytest.fixture
def agent(project: Project) -> Agent:
    return agent_definitions.apply(project, DEFINITION, by="cli:oscar")[0]


def client_of(project: Project, role: Role) -> Client:
    client = Client()
    client.force_login(make_person(project, role))
    return client


def text_of(answer: Any) -> str:
    return html.unescape(answer.content.decode())


def fields_of(client: Client, url: str = "/p/alpha/agents/reviewer/edit") -> dict[str, Any]:
    """Return the values that a browser would submit from the unchanged form."""
    return form_values(client.get(url).content.decode(), "agent-form")


def send(client: Client, values: Mapping[str, Any], url: str = "/p/alpha/agents/reviewer/edit", **changes: Any) -> Any:
    data = {"do": "save"} | {name: value for name, value in {**values, **changes}.items() if value is not None}
    return client.post(url, data)


def definition_of(agent: Agent) -> dict[str, Any]:
    agent.refresh_from_db()
    return {name: value for name, value in agent.frozen().items() if name != "version"}


# --- The list -----------------------------------------------------------------------------------------------------


def test_the_list_shows_agents_with_their_runs(project: Project, agent: Agent, monkeypatch: Any) -> None:
    first = drive(make_run(make_agent(project, slug="replay")))
    client = client_of(project, Role.VIEWER)

    page = text_of(client.get("/p/alpha/agents"))

    assert page.index(">replay<") < page.index(">reviewer<")
    assert f"/runs/{first.pk}" in page
    assert "1 run:" in page
    [link] = re.findall(r'href="([^"]*[?]status=completed&[^"]*)"', page)
    assert "&agent=replay&" in link
    # The linked list has the runs that are counted.
    old = drive(make_run(Agent.objects.get(slug="replay")))
    AgentRun.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(days=8))
    record(Sender(project, "key:test"), [{"runId": "r", "type": "run.started", "payload": {"agent": "replay"}}])
    record(Sender(project, "key:test"), [{"runId": "r", "type": "run.completed", "payload": {}}])
    assert re.findall(r'<tr id="run-([^"]*)"', client.get(link).content.decode()) == [str(first.pk)]
    assert "New agent" not in page
    assert "/p/alpha/runs/new?agent=" not in page
    monkeypatch.setattr(agents_page, "PAGE_SIZE", 1)
    assert "?after=replay" in client.get("/p/alpha/agents").content.decode()
    assert ">reviewer<" in client.get("/p/alpha/agents?after=replay").content.decode()
    assert client.get("/p/alpha/agents?after=A b").status_code == 400


def test_the_list_costs_the_same_with_many_agents_and_runs(project: Project, agent: Agent, admin: Client) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert admin.get("/p/alpha/agents").status_code == 200
        return len(queries)

    before = cost()
    for _ in range(3):
        make_run(make_agent(project))

    assert cost() == before


def test_without_agents_the_list_says_how_to_create_one(project: Project, admin: Client) -> None:
    page = text_of(admin.get("/p/alpha/agents"))

    assert "No agents yet" in page
    assert "agentops agent apply -" in page
    assert "requires the role admin" in text_of(client_of(project, Role.VIEWER).get("/p/alpha/agents"))


# --- An agent -----------------------------------------------------------------------------------------------------


def test_an_agent_is_described(agent: Agent, admin: Client) -> None:
    page = text_of(admin.get("/p/alpha/agents/reviewer"))

    for text in (
        "Review.\nBe brief.",
        "at most 20",
        "ask_user",
        "claude-code-5c",
        "resume, any number of attempts, for rate_limited",
        "roll_back",
        "command_guard",
        "environment: ^prod",
        "2h, then deny",
        "[REDACTED:",
        "cli:oscar",
    ):
        assert text in page, text
    assert KEY not in page


def test_a_removed_tool_is_reported(agent: Agent, admin: Client) -> None:
    Agent.objects.filter(pk=agent.pk).update(tools=["removed_tool"], policies={"hooks": ["removed_hook"]})

    page = text_of(admin.get("/p/alpha/agents/reviewer"))

    assert "Not installed on this site." in page
    assert "removed_hook" in page
    assert admin.get("/p/alpha/agents/reviewer/edit").status_code == 200


def test_each_change_is_a_version_that_can_be_compared(project: Project, agent: Agent, admin: Client) -> None:
    run = make_run(agent)
    changed = {**DEFINITION, "max_steps": 30, "instructions": "Review.\nBe precise."}
    agent_definitions.apply(project, changed, by="user:bob")

    stored = AgentVersion.objects.filter(agent=agent).order_by("number")
    assert [(each.number, each.created_by, sorted(each.changed)) for each in stored] == [
        (1, "cli:oscar", []),
        (2, "user:bob", ["instructions", "max_steps"]),
    ]
    page = text_of(admin.get("/p/alpha/agents/reviewer/versions?a=1&b=2"))
    assert re.search(r"only-a.*brief.*only-b.*precise", page, re.DOTALL)
    assert "user:bob" in page
    assert "These versions are the same" in text_of(admin.get("/p/alpha/agents/reviewer/versions?a=2&b=2"))
    old = text_of(admin.get("/p/alpha/agents/reviewer/versions/1"))
    assert "Be brief." in old
    assert "The agent has version 2 now." in old
    for missing in ("versions/3", "versions/0", "versions/99999999999999", "versions?a=1&b=7"):
        assert admin.get(f"/p/alpha/agents/reviewer/{missing}").status_code == 404, missing
    assert admin.get("/p/alpha/agents/reviewer/versions?a=x").status_code == 400
    # The run keeps and displays the version that it was created with.
    run_page = text_of(admin.get(f"/runs/{run.pk}"))
    assert 'href="/p/alpha/agents/reviewer/versions/1"' in run_page
    assert "the agent has version 2 now" in run_page


def test_a_run_without_a_known_agent_has_no_link(agent: Agent, admin: Client) -> None:
    run = make_run(agent)
    AgentRun.objects.filter(pk=run.pk).update(agent=None)

    assert "/agents/reviewer" not in admin.get(f"/runs/{run.pk}").content.decode()


# --- The form -----------------------------------------------------------------------------------------------------


def test_an_unchanged_form_changes_nothing(agent: Agent, admin: Client) -> None:
    """This includes short forms of rules, settings without a field, and secrets, which the form masks."""
    answer = admin.get("/p/alpha/agents/reviewer/edit")
    assert KEY not in answer.content.decode()

    sent = send(admin, fields_of(admin))

    assert (sent.status_code, sent["Location"]) == (303, "/p/alpha/agents/reviewer")
    assert definition_of(agent) == DEFINITION
    assert agent.version == 1
    assert "Nothing to save" in text_of(admin.get("/p/alpha/agents/reviewer"))


def test_one_change_keeps_everything_else(agent: Agent, admin: Client) -> None:
    values = fields_of(admin)

    sent = send(
        admin,
        values,
        instructions="Review.\r\nBe kind.",
        tools=["done"],
        **{
            "setting-max_tokens": "500",
            "on_error-1-action": "fail",
            "approvals-0-reason": "Careful.",
        },
    )

    assert sent.status_code == 303
    expected = {
        **DEFINITION,
        "instructions": "Review.\nBe kind.",
        "tools": ["recorded", "done"],
        "settings": {**DEFINITION["settings"], "max_tokens": 500},
        "policies": {
            **DEFINITION["policies"],
            "on_error": [DEFINITION["policies"]["on_error"][0], {"action": "fail"}],
            "approvals": [{**DEFINITION["policies"]["approvals"][0], "reason": "Careful."}],
        },
    }
    assert definition_of(agent) == expected
    [created, changed] = AuditEntry.objects.filter(object_id=str(agent.pk)).order_by("created_at", "pk")
    assert changed.actor.startswith("user:alice-")
    assert KEY not in str([created.after, changed.before, changed.after])
    newest = AgentVersion.objects.get(agent=agent, number=2)
    assert newest.definition == agent.frozen()


def test_rules_are_added_and_removed_without_scripts(agent: Agent, admin: Client) -> None:
    page = send(admin, fields_of(admin), do="add:on_dead", instructions="Unsaved text")
    assert page.status_code == 200
    values = form_values(page.content.decode(), "agent-form")
    assert values["instructions"] == "Unsaved text"
    assert values["on_dead-TOTAL_FORMS"] == "1"

    sent = send(
        admin,
        values,
        **{"on_dead-0-action": "resume", "on_dead-0-cooldown": "5m", "on_error-0-DELETE": "on", "hooks-0-DELETE": "on"},
    )

    assert sent.status_code == 303
    policies = definition_of(agent)["policies"]
    assert policies["on_dead"] == {"action": "resume", "cooldown": "5m"}
    assert policies["on_error"] == "escalate"
    assert "hooks" not in policies


def test_each_error_is_at_its_field(agent: Agent, admin: Client) -> None:
    values = fields_of(admin)

    answer = send(
        admin,
        values,
        max_steps="many",
        model="no-such-recording",
        more_tools="no_such_tool",
        settings="{",
        **{
            "on_error-0-attempts": "some",
            "on_error-1-action": "",
            "on_error-1-message": "x",
            "approvals-0-tools": "(",
            "setting-budgets.tokens": "-5",
            "hooks-0-options": '{"alow": []}',
        },
    )

    assert answer.status_code == 422
    form = answer.context["form"]
    assert "valid integer" in form.errors["max_steps"][0]
    assert "Not valid JSON" in form.errors["settings"][0]
    rows = {name: rows.forms for name, rows in form.lists.items()}
    assert "Attempts must be" in str(rows["on_error"][0].errors["attempts"])
    assert "nknown action" in str(rows["on_error"][1].errors["action"])
    assert "tools" in rows["approvals"][0].errors
    assert "hook" in rows["hooks"][0].errors
    assert AgentVersion.objects.filter(agent=agent).count() == 1
    # Errors are reported together, unless the type of another field is wrong.
    assert "no-such-recording" in str(form.errors["model"])
    again = send(
        admin, values, model="no-such-recording", more_tools="no_such_tool", **{"setting-budgets.tokens": "-5"}
    )
    errors = again.context["form"].errors
    assert "no-such-recording" in str(errors["model"])
    assert "no_such_tool" in str(errors["tools"])
    assert "above 0" in str(errors["setting-budgets.tokens"])
    assert 'value="-5"' in again.content.decode()


def test_the_definition_can_be_edited_as_text_with_the_same_checks(agent: Agent, admin: Client) -> None:
    switched = send(admin, fields_of(admin), do="text", max_steps="33")
    values = form_values(switched.content.decode(), "agent-form")
    assert values["mode"] == "text"
    assert '"max_steps": 33' in values["text"]
    assert KEY not in values["text"]

    bad = send(admin, values, text=values["text"].replace('"escalate"', '"explode"', 1))
    assert bad.status_code == 422
    assert "$.policies.on_error[1]" in text_of(bad)
    for text, says in (("{", "Not JSON"), ("a = ", "Not TOML"), ('{"agent_id": "other"}', "cannot be changed")):
        assert says in text_of(send(admin, values, text=text)), text
    # The path of an error may be cut in the middle; here, before the index of an array.
    cut = json.dumps({"agent_id": "reviewer", "settings": {"k" * 189: ["\0"]}})
    assert "a NUL character or an unpaired surrogate" in text_of(send(admin, values, text=cut))
    back = form_values(send(admin, values, do="form").content.decode(), "agent-form")
    assert (back["mode"], back["max_steps"]) == ("form", "33")

    toml = 'provider = "fixture"\nmodel = "claude-code-5c"\ntools = ["recorded"]\n[settings]\npace = 2.0\n'
    assert send(admin, values, text=toml).status_code == 303
    assert definition_of(agent)["settings"] == {"pace": 2.0}
    assert agent.max_steps == 50


def test_the_preview_shows_the_changes(agent: Agent, admin: Client) -> None:
    answer = send(admin, fields_of(admin), do="preview", instructions="Review.\nBe kind.")

    assert answer.status_code == 200
    assert [each.title for each in answer.context["draft"].preview] == ["instructions"]
    assert AgentVersion.objects.filter(agent=agent).count() == 1
    assert "No changes." in text_of(send(admin, fields_of(admin), do="preview"))


def test_a_concurrent_save_is_a_conflict_and_keeps_the_input(project: Project, agent: Agent, admin: Client) -> None:
    values = fields_of(admin)
    agent_definitions.apply(project, {**DEFINITION, "max_steps": 99}, by="user:bob")

    answer = send(admin, values, instructions="My own words")

    assert answer.status_code == 409
    page = text_of(answer)
    assert "user:bob saved version 2" in re.sub(r"<[^>]+>", "", page)
    assert [each.title for each in answer.context["draft"].conflict] == ["max_steps"]
    assert {each.title for each in answer.context["draft"].preview} == {"max_steps", "instructions"}
    assert definition_of(agent)["max_steps"] == 99
    kept = form_values(answer.content.decode(), "agent-form")
    assert (kept["instructions"], kept["base"], kept["origin"]) == ("My own words", "2", "1")

    assert send(admin, kept).status_code == 303
    assert definition_of(agent)["instructions"] == "My own words"
    assert definition_of(agent)["settings"] == DEFINITION["settings"]
    assert agent.version == 3


PLACEMENT = {"queue": "gpu", "priority": 2, "max_running": 3}


@pytest.mark.parametrize("mode", ["form", "text"])
@pytest.mark.parametrize("name", PLACEMENT)
def test_a_stale_form_does_not_write_back_the_placement(
    project: Project, agent: Agent, admin: Client, mode: str, name: str
) -> None:
    """The placement has no versions."""
    values = fields_of(admin, f"/p/alpha/agents/reviewer/edit?as={mode}")
    agent_definitions.apply(project, {**DEFINITION, name: PLACEMENT[name]}, by="user:bob")

    if mode == "form":
        answer = send(admin, values, instructions="My own words")
    else:
        answer = send(admin, values, text=values["text"].replace("Be brief.", "My own words"))

    assert answer.status_code == 409
    assert "Another user has changed this agent" in text_of(answer)
    assert "saved version" not in re.sub(r"<[^>]+>", "", text_of(answer))
    assert [each.title for each in answer.context["draft"].conflict] == [name]
    assert {each.title for each in answer.context["draft"].preview} == {name, "instructions"}
    agent.refresh_from_db()
    assert (getattr(agent, name), agent.version) == (PLACEMENT[name], 1)

    assert send(admin, form_values(answer.content.decode(), "agent-form")).status_code == 303
    agent.refresh_from_db()
    assert "My own words" in agent.instructions
    assert getattr(agent, name) != PLACEMENT[name]


def test_a_text_without_a_placement_does_not_change_it(project: Project, agent: Agent, admin: Client) -> None:
    values = fields_of(admin, "/p/alpha/agents/reviewer/edit?as=text")
    agent_definitions.apply(project, {**DEFINITION, **PLACEMENT}, by="user:bob")

    assert send(admin, values, text=json.dumps({**DEFINITION, "max_steps": 9})).status_code == 303
    agent.refresh_from_db()
    assert (agent.max_steps, agent.placement) == (9, PLACEMENT)


@pytest.mark.parametrize("seen", [None, "", "{", "[]", "{}", '{"queue": "default"}'])
def test_a_form_without_its_placement_is_refused(agent: Agent, admin: Client, seen: str | None) -> None:
    assert send(admin, fields_of(admin), seen=seen).status_code == 400


def test_a_form_submitted_twice_saves_once(agent: Agent, admin: Client) -> None:
    values = fields_of(admin) | {"instructions": "Once"}

    assert [send(admin, values).status_code for _ in range(2)] == [303, 303]
    assert definition_of(agent)["instructions"] == "Once"
    assert agent.version == 2


def test_an_agent_is_created_once(project: Project, admin: Client) -> None:
    url = "/p/alpha/new-agent"
    values = fields_of(admin, url)
    assert values["provider"] == "llm"
    values |= {"agent_id": "helper", "provider": "fixture", "model": "claude-code-5c", "more_tools": "recorded"}

    for _ in range(2):
        answer = send(admin, values, url)
        assert (answer.status_code, answer["Location"]) == (303, "/p/alpha/agents/helper")
    created = Agent.objects.get()
    assert (created.version, created.tools, created.max_steps) == (1, ["recorded"], 50)

    taken = send(admin, values, url, instructions="Other")
    assert taken.status_code == 409
    assert "already has an agent" in str(taken.context["form"].errors["agent_id"])
    for name in ("", "Not A Name", "x" * 64):
        assert send(admin, values, url, agent_id=name).context["form"].errors["agent_id"], name
    assert Agent.objects.count() == 1


def test_a_copy_keeps_secrets(agent: Agent, admin: Client) -> None:
    url = "/p/alpha/new-agent"
    values = fields_of(admin, f"{url}?from=reviewer")
    assert KEY not in str(values)

    assert send(admin, values, url, agent_id="second").status_code == 303

    copy = Agent.objects.get(slug="second")
    assert definition_of(copy) == {**DEFINITION, "agent_id": "second"}


def test_a_definition_without_matching_fields_is_edited_as_text(agent: Agent, admin: Client) -> None:
    Agent.objects.filter(pk=agent.pk).update(policies={"on_idle": [["odd"]]})

    page = admin.get("/p/alpha/agents/reviewer/edit")

    assert page.status_code == 200
    assert "can only be edited as text" in text_of(page)


@pytest.mark.parametrize("name", ["origin", "base"])
@pytest.mark.parametrize("value", ["", "x", "7", "-1", "9" * 30])
def test_a_form_of_an_unknown_version_is_refused(agent: Agent, admin: Client, name: str, value: str) -> None:
    assert send(admin, fields_of(admin), **{name: value}).status_code == 400


HOSTILE = "</textarea><script>alert(1)</script>{{ 7 }}\u202e"


def test_hostile_text_stays_text(project: Project, admin: Client) -> None:
    definition = {
        **DEFINITION,
        "instructions": HOSTILE,
        "settings": {"note": HOSTILE},
        "policies": {"on_idle": {"action": "nudge", "message": HOSTILE}},
    }
    agent, _ = agent_definitions.apply(project, definition, by=SYSTEM)

    for path in ("", "/edit", "/edit?as=text", "/versions/1"):
        page = admin.get(f"/p/alpha/agents/reviewer{path}").content.decode()
        assert "<script>alert" not in page
        assert "\u202e" not in page
    send(admin, fields_of(admin))
    assert definition_of(agent)["instructions"] == HOSTILE
    assert definition_of(agent) == definition
