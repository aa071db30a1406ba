"""A message sent with a resume is recorded as a command of the new run, through every entry point."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import call_command
from django.test import Client

from agentops.accounts.models import Role
from runs.lifecycle import inbox
from runs.models import AgentRun, RunCommand
from tests.support.api import program
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.run_checks import events

MESSAGE = "Go on, but read the file first."


def by_api(run: AgentRun) -> None:
    assert program(run.project).post(f"/{run.pk}/resume", {"message": MESSAGE}).status_code == 201


def by_api_command(run: AgentRun) -> None:
    sent = {"type": "resume", "message": MESSAGE}
    assert program(run.project).post(f"/{run.pk}/commands", sent).status_code == 201


def by_page(run: AgentRun) -> None:
    client = Client()
    client.force_login(make_person(run.project, Role.OPERATOR))
    assert client.post(f"/runs/{run.pk}/resume", {"message": MESSAGE}).status_code == 303


def by_command_line(run: AgentRun) -> None:
    call_command("agent", "resume", str(run.pk), "--message", MESSAGE, stdout=StringIO())


@pytest.mark.django_db
@pytest.mark.parametrize("resume", [by_api, by_api_command, by_page, by_command_line])
def test_the_message_is_a_command_of_the_new_run(resume: Callable[[AgentRun], None]) -> None:
    run = make_run(make_agent(make_project("alpha")))
    inbox.pause(run.pk, by="test")

    resume(run)

    continued = AgentRun.objects.get(resumed_from=run)
    [command] = RunCommand.objects.filter(run=continued)
    assert (command.type, command.payload["message"], command.outcome) == ("send", MESSAGE, "applied")
    assert [event.type for event in events(continued)][:2] == ["run.created", "command.received"]
