"""Schedules on pages, in the API and on the command line: the same schedules and the same refusals."""

from __future__ import annotations

import html
import io
import json
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django_celery_beat.models import PeriodicTask

from agentops.accounts import redaction_changes
from agentops.accounts.access import SYSTEM
from agentops.accounts.models import AuditEntry, Project, Role
from agentops.accounts.redaction_cache import CACHE
from agentops.base.redaction import project_scope
from runs.actions.schedules.schedule_changes import MAX_SCHEDULES, remove_schedule, values_of
from runs.actions.schedules.starting import start_due_schedules
from runs.models import Agent, AgentRun, FlowRun, Schedule, ScheduleStart
from runs.upkeep import old_records, project_removal
from tests.support.factories import make_agent, make_person, make_run, with_key
from tests.support.flows import CONSTANT, make_flow
from tests.support.pages import form_values
from tests.support.project_rows import SetClock, fill_schedule, make_schedule, outcomes, runs_of
from tests.support.secret_samples import CANARIES

PAGES, API = "/p/alpha/schedules", "/api/projects/alpha"


@pytest.fixture
def operator(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.OPERATOR))
    return client


@pytest.fixture
def player(project: Project) -> Agent:
    return make_agent(project, slug="player")


def text_of(answer: Any) -> str:
    return html.unescape(answer.content.decode())


def send(client: Client, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    return client.generic(method, f"{API}/{path}", json.dumps(body or {}), content_type="application/json")


# --- Pages --------------------------------------------------------------------------------------------------------


def test_the_form_adds_a_schedule_and_saving_it_again_changes_nothing(
    project: Project, player: Agent, operator: Client, clock: SetClock
) -> None:
    values = form_values(text_of(operator.get("/p/alpha/new-schedule?agent=player")), "form")
    assert (values["target"], values["name"], values["overlap"]) == ("agent:player", "player", "skip")
    typed = {"name": "Nightly", "prompt": "Line one\r\nline two", "cron": "30  2 * * *", "time_zone": "Europe/Berlin"}
    saved = operator.post("/p/alpha/new-schedule", {**values, **typed, "overlap": "queue", "catch_up": "last"})
    schedule = Schedule.objects.get()
    assert (saved.status_code, saved["Location"]) == (303, f"{PAGES}/{schedule.pk}")
    stored = values_of(schedule)
    assert stored == {
        "name": "Nightly",
        "agent": "player",
        "flow": "",
        "prompt": "Line one\nline two",
        "inputs": {},
        "cron": "30 2 * * *",
        "time_zone": "Europe/Berlin",
        "every_s": None,
        "overlap": "queue",
        "catch_up": "last",
        "is_enabled": True,
    }
    page = text_of(operator.get(f"{PAGES}/{schedule.pk}"))
    assert "Tue 02 Jun 2026, 02:30 Europe/Berlin" in page
    assert page.count("02:30 Europe/Berlin") == 5
    again = form_values(text_of(operator.get(f"{PAGES}/{schedule.pk}/edit")), "form")
    assert operator.post(f"{PAGES}/{schedule.pk}/edit", again).status_code == 303
    assert values_of(Schedule.objects.get()) == stored
    assert AuditEntry.objects.filter(action__startswith="schedule.").count() == 1


def test_a_flow_with_an_interval(project: Project, operator: Client, clock: SetClock) -> None:
    make_flow({**CONSTANT, "flow_id": "sample"}, project)
    typed = {"name": "Sync", "target": "flow:sample", "inputs": "{}", "every": "90", "unit": "minutes", "cron": ""}
    rules = {"overlap": "allow", "catch_up": "none", "time_zone": "", "prompt": ""}
    assert operator.post("/p/alpha/new-schedule", {**typed, **rules}).status_code == 303
    schedule = Schedule.objects.get()
    assert (schedule.flow, values_of(schedule)["every_s"]) == ("sample", 5400)
    assert "every 90 minutes" in text_of(operator.get(PAGES))
    again = form_values(text_of(operator.get(f"{PAGES}/{schedule.pk}/edit")), "form")
    assert (again["every"], again["unit"]) == ("90", "minutes")
    seconds = {**again, "every": "90", "unit": "seconds"}
    assert operator.post(f"{PAGES}/{schedule.pk}/edit", seconds).status_code == 303
    shown = form_values(text_of(operator.get(f"{PAGES}/{schedule.pk}/edit")), "form")
    assert (shown["every"], shown["unit"]) == ("90", "seconds")
    assert operator.post(f"{PAGES}/{schedule.pk}/edit", {**again, "unit": "hours"}).status_code == 303
    # The new interval starts now.
    clock.move(hours=89, minutes=59)
    assert start_due_schedules() == 0
    clock.move(minutes=1)
    start_due_schedules()
    flow_run = FlowRun.objects.get()
    assert f"/flow-runs/{flow_run.pk}" in text_of(operator.get(f"{PAGES}/{schedule.pk}"))


@pytest.mark.parametrize(
    ("typed", "field", "message"),
    [
        ({"cron": "0 25 * * *"}, "cron", "'0 25 * * *' is not a cron expression: bad hour."),
        ({"cron": ""}, "cron", "Either a cron expression or an interval is required, not both."),
        ({"every": "5"}, "cron", "Either a cron expression or an interval is required, not both."),
        ({"cron": "", "every": "0"}, "every", "An interval must be 60 to"),
        ({"cron": "", "every": "x"}, "every", "'x' is not a whole number."),
        ({"cron": "", "every": "1", "unit": "years"}, "every", "The unit must be one of"),
        ({"time_zone": "Berlin"}, "time_zone", "'Berlin' is not a time zone"),
        ({"target": "agent:nobody"}, "target", "There is no agent 'nobody'"),
        ({"target": ""}, "target", "Choose an agent or a flow."),
        ({"target": "agent:asker"}, "prompt", "This agent requires a prompt."),
        ({"target": "flow:strict"}, "inputs", "'day' is a required property."),
        ({"target": "flow:strict", "inputs": "[1"}, "inputs", "The inputs are not JSON"),
        ({"target": "flow:strict", "inputs": "[1]"}, "inputs", "The inputs must be a JSON object."),
        ({"name": ""}, "name", "String should have at least 1 character."),
        ({"name": "Taken"}, "name", "A schedule 'Taken' already exists."),
        ({"overlap": "maybe"}, "overlap", "Input should be 'skip', 'queue' or 'allow'."),
    ],
)
@pytest.mark.usefixtures("player")
def test_errors_are_displayed_at_their_field(
    project: Project, operator: Client, typed: dict[str, str], field: str, message: str
) -> None:
    make_agent(project, slug="asker", provider="scripted", model="none")
    make_flow({**CONSTANT, "flow_id": "strict", "inputs": {"type": "object", "required": ["day"]}}, project)
    make_schedule(project, name="Taken")
    values = {"name": "New", "target": "agent:player", "cron": "0 9 * * *", "time_zone": "UTC", "unit": "minutes"}
    answer = operator.post("/p/alpha/new-schedule", {**values, "overlap": "skip", "catch_up": "none", **typed})
    assert answer.status_code == 422
    assert message in text_of(answer)
    assert list(answer.context["form"].errors) == [field]
    [error_id] = re.findall(r'<span class="error" id="([^"]+)">', text_of(answer))
    assert re.search(rf'aria-describedby="[^"]*\b{error_id}"', text_of(answer))
    # The form keeps the input.
    shown = form_values(text_of(answer), "form")
    assert {name: shown[name] for name in typed if name not in ("target", "unit", "overlap")} == {
        name: value for name, value in typed.items() if name not in ("target", "unit", "overlap")
    }
    assert Schedule.objects.count() == 1


def test_actions_on_a_page(project: Project, player: Agent, operator: Client, clock: SetClock) -> None:
    schedule = make_schedule(project, player)
    here = f"{PAGES}/{schedule.pk}"
    assert "Resume schedule" not in text_of(operator.get(here))
    operator.post(f"{here}/switch", {"enabled": "no"})
    assert "Resume schedule" in text_of(operator.get(here))
    token = operator.get(here).context["token"]
    answers = [operator.post(f"{here}/run", {"token": str(token)}) for _ in range(2)]
    [run] = runs_of(schedule)
    assert [answer["Location"] for answer in answers] == [f"/runs/{run.pk}"] * 2
    page = text_of(operator.get(here))
    assert f"/runs/{run.pk}" in page
    assert f"/p/alpha/runs?schedule={schedule.pk}" in page
    assert "started by schedule nightly" in " ".join(text_of(operator.get(f"/runs/{run.pk}")).split()).replace(
        "<bdi>", ""
    )
    player.delete()
    operator.post(f"{here}/run", {"token": "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"})
    assert "No run was started: there is no agent 'player'" in text_of(operator.get(here))
    # A schedule whose agent was deleted can still be disabled and removed.
    operator.post(f"{here}/switch", {"enabled": "yes"})
    assert Schedule.objects.get().is_enabled
    operator.post(f"{here}/remove")
    assert (Schedule.objects.count(), PeriodicTask.objects.count(), ScheduleStart.objects.count()) == (0, 0, 0)
    run.refresh_from_db()
    assert run.schedule_id is None
    actions = ["schedule.changed", "schedule.started", "schedule.changed", "schedule.removed"]
    ours = AuditEntry.objects.filter(action__startswith="schedule.").exclude(action="schedule.added")
    assert list(ours.order_by("pk").values_list("action", flat=True)) == actions


def test_pages_of_starts_and_the_view_of_viewers(project: Project, player: Agent, clock: SetClock) -> None:
    viewer = Client()
    viewer.force_login(make_person(project, Role.VIEWER))
    assert "No schedules yet" in text_of(viewer.get(PAGES))
    schedule = make_schedule(project, player, overlap="queue")
    for _ in range(60):
        clock.move(minutes=1)
        start_due_schedules()
    here = f"{PAGES}/{schedule.pk}"
    first = viewer.get(here)
    assert "Run now" not in text_of(first)
    older = viewer.get(f"{here}?before={first.context['older']}")
    rows = [*first.context["starts"], *older.context["starts"]]
    assert [start.outcome for start, _ in rows] == ["skipped"] * 58 + ["waiting", "started"]
    assert viewer.get(f"{here}?before=x").status_code == 400
    assert viewer.get(f"{PAGES}/01a1f86c-1b1a-72f0-b808-0c8f1390c3f4").status_code == 404
    assert viewer.post(f"{here}/run", {"token": "x"}).status_code == 403


def test_the_run_list_filters_by_schedule(project: Project, player: Agent, operator: Client, clock: SetClock) -> None:
    schedule = make_schedule(project, player, overlap="allow")
    other = make_run(player)
    for _ in range(2):
        clock.move(minutes=1)
        start_due_schedules()
    expected = {str(run.pk) for run in runs_of(schedule)}
    for query in (f"schedule={schedule.pk}", f"schedule={schedule.pk}&status=queued&sort=cost"):
        page = operator.get(f"/p/alpha/runs?{query}")
        assert {str(run.pk) for run in page.context["page"].runs} == expected
    assert f'value="{schedule.pk}" selected' in text_of(page)
    assert operator.get("/p/alpha/runs?schedule=nightly").status_code == 400
    key = Client(headers=with_key(project, "read"))
    listed = key.get(f"{API}/agent-runs?schedule_id={schedule.pk}").json()["results"]
    assert {run["id"] for run in listed} == expected
    [run_id, _] = expected
    assert key.get(f"{API}/agent-runs/{run_id}").json()["schedule_id"] == str(schedule.pk)
    assert key.get(f"{API}/agent-runs/{other.pk}").json()["schedule_id"] is None
    exported = key.get(f"{API}/agent-runs/export?schedule={schedule.pk}").getvalue().decode().splitlines()
    assert {json.loads(line)["id"] for line in exported} == expected


# --- API ----------------------------------------------------------------------------------------------------------


def test_schedules_are_added_changed_run_and_removed_by_api(project: Project, player: Agent, clock: SetClock) -> None:
    client = Client(headers=with_key(project, "read", "write"))
    body = {"name": "Nightly", "agent_id": "player", "cron": "0 3 * * *", "time_zone": "America/New_York"}
    added = send(client, "POST", "schedules", body)
    assert added.status_code == 201
    row = added.json()
    assert row["next_due_at"][0] == "2026-06-02T07:00:00.000000Z"
    assert {name: row[name] for name in body} == body
    here = f"schedules/{row['id']}"
    assert added["Location"] == f"{API}/{here}"
    assert client.get(f"{API}/{here}").json() == row == client.get(f"{API}/schedules").json()["results"][0]
    # The interval replaces the cron expression.
    changed = send(client, "PATCH", here, {"every_s": 3600, "overlap": "allow"}).json()
    assert (changed["cron"], changed["every_s"], changed["overlap"]) == ("", 3600, "allow")
    assert changed["next_due_at"][0] == "2026-06-01T10:00:30.000000Z"
    paused = send(client, "PATCH", here, {"is_enabled": False}).json()
    assert (paused["is_enabled"], paused["next_due_at"]) == (False, [])
    started = send(client, "POST", f"{here}/run")
    [run] = AgentRun.objects.all()
    assert (started.status_code, started.json()) == (201, {"run_id": str(run.pk), "flow_run_id": None})
    assert started["Location"] == f"{API}/agent-runs/{run.pk}"
    [start] = client.get(f"{API}/{here}/starts").json()["results"]
    assert (start["due_at"], start["outcome"], start["run_id"]) == (None, "started", str(run.pk))
    assert client.get(f"{API}/{here}/starts?outcome=failed").json()["results"] == []
    assert send(client, "DELETE", here).status_code == 204
    assert client.get(f"{API}/{here}").json()["code"] == "schedule_not_found"


@pytest.mark.parametrize(
    ("changes", "code", "pointer"),
    [
        ({"cron": "* * * * * *"}, "invalid_schedule", "/cron"),
        ({"cron": "0 9 * * 7"}, "invalid_schedule", "/cron"),
        ({"time_zone": "Mars"}, "invalid_schedule", "/time_zone"),
        ({"every_s": 3600}, "invalid_schedule", "/cron"),
        ({"agent_id": "nobody"}, "invalid_schedule", "/agent_id"),
        ({"flow_id": "nobody"}, "invalid_schedule", "/agent_id"),
        ({"inputs": {"a": 1}}, "invalid_schedule", "/inputs"),
        ({"every_s": 59, "cron": ""}, "min_value", "/every_s"),
        ({"every_s": True, "cron": ""}, "invalid", "/every_s"),
        ({"overlap": "never"}, "invalid_choice", "/overlap"),
        ({"colour": "red"}, "unknown_field", "/colour"),
    ],
)
def test_the_api_names_the_invalid_field(
    project: Project, player: Agent, changes: dict[str, Any], code: str, pointer: str
) -> None:
    client = Client(headers=with_key(project, "read", "write"))
    body = {"name": "Nightly", "agent_id": "player", "cron": "0 3 * * *", **changes}
    answer = send(client, "POST", "schedules", body)
    assert answer.status_code == 422
    assert (answer.json()["code"], answer.json()["errors"][0]["pointer"]) == (code, pointer)
    assert Schedule.objects.count() == PeriodicTask.objects.count() == 0


def test_a_project_has_a_limited_number_of_schedules(project: Project, player: Agent) -> None:
    for number in range(MAX_SCHEDULES):
        make_schedule(project, player, name=f"{number}")
    client = Client(headers=with_key(project, "read", "write"))
    refused = send(client, "POST", "schedules", {"name": "more", "agent_id": "player", "every_s": 60})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_schedule")
    assert f"at most {MAX_SCHEDULES} schedules" in refused.json()["detail"]


def test_secrets_in_a_prompt_are_not_stored(project: Project, player: Agent) -> None:
    secret = "sk-ant-api03-" + "A" * 93 + "AA"
    schedule = make_schedule(project, player, prompt=f"Use {secret}.")
    assert secret not in Schedule.objects.get().prompt
    assert secret not in json.dumps(list(AuditEntry.objects.values("after")), default=str)
    assert schedule.prompt.startswith("Use [REDACTED:")


def test_inputs_are_checked_after_masking(project: Project) -> None:
    """The flow's schema may refuse a masked value, and then no run could start."""
    schema = {"type": "object", "properties": {"code": {"type": "string", "maxLength": 36}}}
    make_flow({**CONSTANT, "flow_id": "strict", "inputs": schema}, project)
    secret = CANARIES["stripe"][0]
    assert len(secret) <= 36
    client = Client(headers=with_key(project, "read", "write"))
    body = {"name": "Nightly", "flow_id": "strict", "inputs": {"code": secret}, "every_s": 60}
    answer = send(client, "POST", "schedules", body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/inputs")
    assert secret not in answer.content.decode()


def test_a_stored_secret_is_displayed_masked_and_kept_if_its_mark_is_submitted(
    project: Project, player: Agent, operator: Client
) -> None:
    """In a project that does not mask model input."""
    redaction_changes.set_model_input_masking(project, False, actor=SYSTEM)
    CACHE.expire()
    secret = CANARIES["stripe"][0]
    with project_scope.limited_to(project.pk):
        schedule = make_schedule(project, player, prompt=f"Use {secret}.")
    assert values_of(Schedule.objects.get())["prompt"] == f"Use {secret}."
    page = operator.get(f"{PAGES}/{schedule.pk}/edit").content.decode()
    assert secret not in page
    values = form_values(html.unescape(page), "form")
    assert values["prompt"].startswith("Use [REDACTED:")
    assert (
        operator.post(f"{PAGES}/{schedule.pk}/edit", {**values, "prompt": f"Do {values['prompt']}"}).status_code == 303
    )
    assert Schedule.objects.get().prompt == f"Do Use {secret}."
    client = Client(headers=with_key(project, "read", "write"))
    shown = client.get(f"{API}/schedules/{schedule.pk}").json()["prompt"]
    assert secret not in shown
    assert send(client, "PATCH", f"schedules/{schedule.pk}", {"prompt": f"Then {shown}"}).status_code == 200
    assert Schedule.objects.get().prompt == f"Then Do Use {secret}."


# --- Command line -------------------------------------------------------------------------------------------------


def command(*words: str) -> str:
    out = io.StringIO()
    call_command("schedule", *words, stdout=out)
    return out.getvalue()


def test_the_command_line(project: Project, player: Agent, clock: SetClock) -> None:
    assert command("ls", "alpha") == ""
    added = command("add", "alpha", "Nightly", "--agent", "player", "--cron", "0 3 * * *", "--time-zone", "Asia/Tokyo")
    assert added == "Nightly: agent player, 0 3 * * * in Asia/Tokyo; skipped while a run is going\n"
    [row] = json.loads(command("ls", "alpha", "--json"))
    assert (row["state"], row["next"][0], row["problem"]) == ("enabled", "2026-06-01 18:00", "")
    assert "2026-06-01 18:00" in command("ls", "alpha")
    command("change", "alpha", "Nightly", "--every", "120", "--name", "Often", "--catch-up", "last")
    assert "every 2 minutes" in command("ls", "alpha")
    run_id = command("run", "alpha", "Often").strip()
    assert [str(run.pk) for run in runs_of(Schedule.objects.get())] == [run_id]
    assert run_id in command("starts", "alpha", "Often")
    assert command("pause", "alpha", "Often") == "Often: paused\n"
    assert not Schedule.objects.get().is_enabled
    assert command("resume", "alpha", "Often") == "Often: resumed\n"
    assert command("rm", "alpha", row["id"]) == "Often: removed\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "alpha", "x", "--agent", "player", "--cron", "x"], "5 fields"),
        (["add", "alpha", "x", "--flow", "sample", "--inputs", "{", "--every", "60"], "--inputs must be a JSON object"),
        (
            ["add", "alpha", "x", "--flow", "sample", "--inputs", "[]", "--every", "60"],
            "--inputs must be a JSON object",
        ),
        (["run", "alpha", "x"], "the project has no such schedule"),
        (["change", "alpha", "x"], "nothing to change"),
    ],
)
def test_errors_of_the_command_line(project: Project, player: Agent, words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        command(*words)


# --- Deletion -----------------------------------------------------------------------------------------------------


def test_old_starts_are_deleted(project: Project) -> None:
    """A start that is still waiting is kept."""
    fill_schedule(project, 1, "text")
    old_records.delete_batch()
    assert list(ScheduleStart.objects.values_list("outcome", flat=True)) == ["waiting"]


def test_a_project_is_deleted_with_its_schedules(project: Project, player: Agent, clock: SetClock) -> None:
    schedule = make_schedule(project, player)
    clock.move(minutes=1)
    start_due_schedules()
    assert outcomes(schedule) == [("09:01", "started")]
    Project.objects.filter(pk=project.pk).update(
        removed_at=clock.at, removal={"slug": "alpha", "name": "Alpha", "by": "user:oscar", "rows": {}}
    )
    clock.move(minutes=1)
    assert start_due_schedules() == 0
    for _ in project_removal.remove(Project._base_manager.get(pk=project.pk)):
        pass
    assert (Schedule.objects.count(), PeriodicTask.objects.count()) == (0, 0)


def test_removing_a_schedule_keeps_the_others(project: Project, player: Agent) -> None:
    first, second = make_schedule(project, player), make_schedule(project, player, name="second")
    remove_schedule(project, first.pk, by=SYSTEM)
    assert [schedule.name for schedule in Schedule.objects.all()] == ["second"]
    assert PeriodicTask.objects.get().pk == second.periodic_task_id
