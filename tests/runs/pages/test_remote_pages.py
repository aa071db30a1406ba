"""The pages of remote runs and of their agents: who executes them, their steps, and what they wait for."""

from __future__ import annotations

import html
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db.models import F
from django.test import Client
from pytest_django import Settings

from agentops.accounts.models import Project, Role
from runs.models import AgentRun, RunCommand, WorkerProcess
from runs.pages.timeline import live_cards, window
from tests.support import remote_samples
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.pages import form_values, parse
from tests.support.remote import Program
from timeline import log

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def admin(project: Project) -> Client:
    return client_of(project, Role.ADMIN)


def client_of(project: Project, role: Role) -> Client:
    client = Client()
    client.force_login(make_person(project, role))
    return client


def text_of(answer: Any) -> str:
    assert answer.status_code == 200
    page = parse(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])
    return " ".join(page.words.split())


def started(project: Project, **options: Any) -> Program:
    program = Program(project, **options)
    program.start_run()
    assert program.claim() is not None
    return program


def wait_long(run: AgentRun) -> None:
    """Let a queued run wait for longer than a process needs to claim it."""
    AgentRun.objects.filter(pk=run.pk).update(queued_at=F("queued_at") - timedelta(minutes=1))


# --- The page of a run ------------------------------------------------------------------------------------------------


def test_the_page_says_who_executes_the_run(project: Project, admin: Client) -> None:
    program = started(project, versions=(3,), name="laptop:17:a")
    text = text_of(admin.get(f"/runs/{program.run_id}"))

    assert "remote code version 3" in text
    assert "Code version 3" in text
    assert "Processlaptop:17:a" in text
    assert "Cost no calls" in text  # a step need not be a model call

    native = text_of(admin.get(f"/runs/{make_run(make_agent(project)).pk}"))
    assert "Code version" not in native


def test_a_step_is_shown_as_its_call_without_an_empty_answer(project: Project, admin: Client) -> None:
    program = started(project)
    remote_samples.complete(program)
    page = admin.get(f"/runs/{program.run_id}").content.decode()

    assert page.count('class="row card card-assistant') == 2  # the model calls
    for name in ("read_invoices", "charge", "fetch_key", "render_report", "notify"):
        assert page.count(f'tool-name"><bdi>{name}</bdi>') == 1, name
    texts = dict(program.run.tool_calls.values_list("tool_name", "output"))
    assert (texts["fetch_key"], texts["render_report"]) == ("[sealed by fernet]", "[a value in 2 pieces]")


def test_live_rows_of_a_step_are_those_of_a_reloaded_page(project: Project) -> None:
    program = started(project)
    program.step("1", "plan", {"days": 3})
    events = list(log.events_of(program.run.pk).order_by("seq"))
    live = "".join(piece.get("rows", "") for event in events for piece in live_cards.render(program.run.pk, [event]))

    shown = [item.id for item in window.newest(program.run.pk, events[-1].seq).items]
    assert all(f'id="{each}"' in live for each in shown)
    assert "card-assistant" not in live


def test_a_link_to_the_message_of_a_step_leads_to_its_call(project: Project, admin: Client) -> None:
    program = started(project)
    program.step("1", "plan", {"days": 3})
    message = program.run.messages.get(role="assistant")
    seq = log.events_of(program.run.pk).get(ref_id=message.pk, type="message.added").seq

    shown = window.around(program.run.pk, seq, seq + 3).items
    assert [item.id for item in shown if item.is_target] == [f"call-{program.run.tool_calls.get().pk}"]


def test_the_messages_of_a_step_have_no_assistant(project: Project, admin: Client) -> None:
    program = started(project)
    program.step("1", "plan", {"days": 3})
    text = text_of(admin.get(f"/runs/{program.run_id}/messages"))

    assert "Step step 1" in text
    assert "Calls plan" in text
    assert "Result step 1" in text
    assert "Assistant" not in text
    message = program.run.messages.get(role="assistant")
    assert "Role Step" in text_of(admin.get(f"/runs/{program.run_id}/messages/{message.pk}"))


@pytest.mark.parametrize("tab", ["waterfall", "calls", "tree", "state", "events", "errors", "cost", "replay"])
def test_every_tab_shows_a_remote_run(project: Project, admin: Client, tab: str) -> None:
    program = started(project)
    remote_samples.complete(program)
    text = text_of(admin.get(f"/runs/{program.run_id}/{tab}"))

    assert ("read_invoices" in text) is (tab in ("waterfall", "calls", "events"))


def test_the_report_names_steps_and_the_code_version(project: Project, admin: Client) -> None:
    program = started(project)
    program.step("1", "plan", {"days": 3})
    report = b"".join(admin.get(f"/runs/{program.run_id}/export/html").streaming_content).decode()

    assert "<h3>Step <span" in report
    assert "<dt>Code version</dt>" in report
    assert "Assistant" not in report


# --- What it waits for ------------------------------------------------------------------------------------------------


def announce(project: Project, **options: Any) -> None:
    queues = options.pop("queues", ["default"])
    Program(project, **options).heartbeat()
    WorkerProcess.objects.filter(project=project).update(queues=queues)


@pytest.mark.parametrize(
    ("process", "head", "text"),
    [
        (None, "No process offers the agent nightly", "with an API key of this project that has the scope work"),
        ({"agent": "report"}, "No process offers the agent nightly", "Start a process whose code has this agent"),
        ({"versions": (2, 3)}, "No process has code version 1 of nightly", "Processes have the versions 2, 3."),
        ({"queues": ["gpu"]}, "No process with code version 1 of nightly serves the queue default", "another queue"),
    ],
)
def test_a_queued_run_names_the_process_that_is_missing(
    project: Project, admin: Client, process: Any, head: str, text: str
) -> None:
    run = Program(project).start_run()
    announce(make_project("other"))
    if process is not None:
        announce(project, **process)
    page = text_of(admin.get(f"/runs/{run.pk}"))

    assert head in page
    assert text in page


def test_a_queued_run_with_a_process_waits_for_its_place(project: Project, admin: Client) -> None:
    run = Program(project).start_run()
    announce(project)
    assert "No process" not in text_of(admin.get(f"/runs/{run.pk}"))

    wait_long(run)
    assert "No process has claimed this run yet" in text_of(admin.get(f"/runs/{run.pk}"))


def test_a_run_that_sleeps(project: Project, admin: Client) -> None:
    program = started(project)
    program.start("1", "nap", kind="sleep", seconds=86_400)
    text = text_of(admin.get(f"/runs/{program.run_id}"))

    assert "Sleeping for" in text
    assert "The run continues automatically and occupies no process." in text


def test_a_person_sends_the_signal_that_a_run_waits_for(project: Project) -> None:
    program = started(project)
    program.start("1", "payment", kind="signal", signal="payment.received")
    client = client_of(project, Role.OPERATOR)
    page = client.get(f"/runs/{program.run_id}")
    assert "Waiting for the signal payment.received" in text_of(page)

    form = form_values(page.content.decode(), "answer")
    answer = client.post(f"/runs/{program.run_id}/signal", {**form, "payload": '{"paid": true}'})
    assert answer.status_code == 303
    assert "Signal sent." in text_of(client.get(answer["Location"]))
    assert program.claim() is not None
    started_again = program.start("1", "payment", kind="signal", signal="payment.received")
    assert started_again["value"] == {"paid": True}


def test_a_signal_that_is_sent_early_is_named(project: Project) -> None:
    program = started(project)
    client = client_of(project, Role.OPERATOR)
    client.post(f"/runs/{program.run_id}/signal", {"name": "later", "payload": ""})

    text = text_of(client.get(f"/runs/{program.run_id}"))
    assert "1 undelivered signal" in text
    assert "when its code waits for it: later." in text


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ({"name": "payment", "payload": "{"}, "Signal not sent: the value is not valid JSON"),
        ({"name": "", "payload": "1"}, "the name of a signal must have 1 to 200 characters"),
    ],
)
def test_an_invalid_signal_is_refused(project: Project, sent: dict[str, str], reason: str) -> None:
    program = started(project)
    client = client_of(project, Role.OPERATOR)
    answer = client.post(f"/runs/{program.run_id}/signal", sent)

    assert reason in html.unescape(str(next(iter(get_messages(answer.wsgi_request)))))
    assert not RunCommand.objects.exists()


def test_a_viewer_sees_the_signal_and_cannot_send_it(project: Project) -> None:
    program = started(project)
    program.start("1", "payment", kind="signal", signal="payment.received")
    client = client_of(project, Role.VIEWER)

    text = text_of(client.get(f"/runs/{program.run_id}"))
    assert "Waiting for the signal payment.received" in text
    assert "Requires the role operator or admin." in text
    assert client.post(f"/runs/{program.run_id}/signal", {"name": "x"}).status_code == 403


def test_an_unknown_outcome_is_that_of_a_process(project: Project, admin: Client) -> None:
    program = Program(project)
    program.start_run()
    remote_samples.lose_process(program)
    text = text_of(admin.get(f"/runs/{program.run_id}"))

    assert "The process stopped before it saved a result of this step." in text
    assert "the model is told" not in text


def test_an_error_of_the_function(project: Project, admin: Client) -> None:
    program = started(project)
    program.release("failed", error={"type": "ValueError", "message": "no amount"})

    assert "The function raised an error." in text_of(admin.get(f"/runs/{program.run_id}"))


# --- Agents -----------------------------------------------------------------------------------------------------------


def test_the_page_of_an_agent_lists_its_processes(project: Project, admin: Client) -> None:
    program = started(project, versions=(2,), name="laptop:17:a")
    text = text_of(admin.get("/p/alpha/agents/nightly"))
    assert "No process offers the agent nightly." in text
    assert "no process offers the agent nightly" in text_of(admin.get("/p/alpha/agents"))

    program.heartbeat()
    page = admin.get("/p/alpha/agents/nightly")
    text = text_of(page)
    assert "Code version2" in text
    assert "laptop:17:a nightly 2 default 1 1" in text
    assert "No process offers" not in text
    assert "source=remote" in page.content.decode()
    assert "no process offers" not in text_of(admin.get("/p/alpha/agents"))


def test_the_form_of_a_remote_agent_keeps_what_it_does_not_show(
    project: Project, admin: Client, settings: Settings
) -> None:
    settings.AGENTOPS_TOOL_ROOTS = ["/srv"]
    Program(project).register(settings={"root": "/srv", "max_tokens": 5}, max_steps=7)
    url = "/p/alpha/agents/nightly/edit"
    page = admin.get(url).content.decode()
    for name in ("tools", "setting-root", "setting-max_tokens", "on_crash", "on_idle-TOTAL_FORMS"):
        assert f'name="{name}"' not in page, name
    assert "Processes elsewhere execute the runs of this agent" in page

    form = form_values(page, "agent-form")
    answer = admin.post(url, {**form, "setting-code_version": "4", "max_steps": "9", "do": "save"})
    assert answer.status_code == 303, text_of(answer)
    agent = project.agents.get(slug="nightly")
    assert (agent.settings, agent.max_steps) == ({"root": "/srv", "max_tokens": 5, "code_version": 4}, 9)


def test_the_form_of_another_agent_has_no_code_version(project: Project, admin: Client) -> None:
    make_agent(project, slug="reviewer")
    page = admin.get("/p/alpha/agents/reviewer/edit").content.decode()

    assert 'name="setting-root"' in page
    assert "code_version" not in page


# --- The site, the project and the inbox ------------------------------------------------------------------------------


def test_the_pages_of_processes(project: Project) -> None:
    boss = Client()
    boss.force_login(make_person(project, Role.ADMIN))
    assert "Remote runs" not in text_of(boss.get("/p/alpha"))
    program = started(project, name="laptop:17:a")
    program.heartbeat()

    assert "Remote runs 1 process with 1 run" in text_of(boss.get("/p/alpha"))


def test_a_project_without_a_process_for_its_queued_runs(project: Project, admin: Client) -> None:
    Program(project).start_run()
    text = text_of(admin.get("/p/alpha"))

    assert "Remote runs needs attention no process with 0 runs; 1 in the queue" in text
    assert "Workers none has a run of this project; idle" in text  # the remote run is not in their queue


def test_the_inbox_lists_stalled_remote_runs(project: Project, admin: Client) -> None:
    run = Program(project).start_run()
    native = make_run(make_agent(project), "Look")
    for each in (run, native):
        AgentRun.objects.filter(pk=each.pk).update(queued_at=F("queued_at") - timedelta(hours=1))
    text = text_of(admin.get("/p/alpha/approvals"))

    assert "No process takes it. Its page says which process it needs." in text
    assert "No worker takes it" in text
