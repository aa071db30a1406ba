"""Builders of real rows, one short call each: people with sessions and keys, projects, agents and runs.

Sessions and keys are returned as the HTTP headers that a browser or a program sends.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from agentops.accounts.access import SYSTEM
from agentops.accounts.keys import create_key
from agentops.accounts.login.addresses import mark_verified
from agentops.accounts.login.throttle import OWN
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Project, Role
from runs import chaos
from runs.engine.results import ShutdownDue
from runs.fixtures.fixture_files import load_named
from runs.lifecycle import creation, transitions
from runs.lifecycle.suspicion import CHILD_SEPARATOR
from runs.models import Agent, AgentRun, AgentVersion, FileImport, ImportState
from runs.statuses import LIVE, RunStatus
from runs.worker.worker import Worker
from timeline.events.run import RunFailed
from timeline.models import Log, Source

PASSWORD = "a long password for the tests 1"
#: Who acts in the tests: alice administers a project, oscar operates its runs, vera only views them. Other names belong
#: to people who are invited, removed or attack.
CAST = {Role.ADMIN: "alice", Role.OPERATOR: "oscar", Role.VIEWER: "vera"}
_numbers = itertools.count(1)


def make_person(project: Project | None = None, role: Role = Role.OPERATOR, *, password: str | None = None) -> User:
    """Create a user, such as vera-3, and add it to `project` if given.

    Without a password, only `session_of` can sign the user in.
    """
    person = User.objects.create_user(f"{CAST[role]}-{next(_numbers)}", password=password)
    if project is not None:
        add_member(project, person, role, actor=SYSTEM)
    return person


def verify_address(person: User) -> User:
    """Mark the user's email address as verified, as opening the emailed link does."""
    mark_verified(person, person.email.lower(), actor=SYSTEM)
    return person


def session_of(person: User) -> str:
    """Return the value of a fresh session cookie."""
    client = Client()
    client.force_login(person)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def signed_in(person: User) -> dict[str, str]:
    return {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session_of(person)}"}


def with_key(project: Project, *scopes: str) -> dict[str, str]:
    made = create_key(project, name="a program", scopes=scopes or ("read",), actor=SYSTEM)
    return {"Authorization": f"Bearer {made.plain}"}


def key_prefix(headers: Mapping[str, str]) -> str:
    """Return the visible prefix of the key in the headers of `with_key`."""
    return headers["Authorization"].removeprefix("Bearer ").rpartition("_")[0]


def forget_attempts() -> None:
    """Reset all counters of attempts."""
    OWN.clear_all()
    if settings.REDIS_URL:
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            client.flushdb()


def make_project(slug: str | None = None) -> Project:
    slug = slug or f"project-{next(_numbers)}"
    return Project.objects.create(slug=slug, name=slug.title())


def make_log(project: Project | None = None) -> Log:
    return Log.objects.create(project=project or make_project())


def make_agent(project: Project | None = None, *, fixture: str = "claude-code-5c", **fields: Any) -> Agent:
    """Create an agent that plays a shipped recording without delays, and never truncates an output."""
    settings = {"tool_output_limit": None, "on_unknown_tool": "tell_model"} | fields.pop("settings", {})
    defaults = {"provider": "fixture", "model": fixture, "tools": ["recorded"], "max_steps": 500}
    agent = Agent.objects.create(
        project=project or make_project(),
        slug=fields.pop("slug", f"agent-{next(_numbers)}"),
        settings=settings,
        **(defaults | fields),
    )
    AgentVersion.of(agent, by="test").save()
    return agent


def make_run(agent: Agent | None = None, prompt: Any = None, **options: Any) -> AgentRun:
    """Create a queued run. The default prompt is the recording's."""
    agent = agent or make_agent()
    if prompt is None:
        prompt = load_named(agent.model).answers[0].input.prompt
    return creation.create(agent.project, agent, prompt, by="test", **options)


def make_import(run: AgentRun, text: str = "chat.json", **fields: Any) -> FileImport:
    """Create a finished import of a file with one run."""
    defaults = {"file_name": text[:255], "error": text, "created_by": "user:alice", "run_ids": [str(run.pk)]}
    finished = {"state": ImportState.DONE, "size": 7, "sha256": b"", "events": 3, "new_events": 3, "new_runs": 1}
    return FileImport.objects.create(project=run.project, **(defaults | finished | fields))


def drive(run: AgentRun, worker: Worker | None = None) -> AgentRun:
    """Drive `run` in this process until it ends or waits for a person. Return its fresh row.

    The default worker holds only this run, like a process that may also retry a run whose workers have died.
    """
    own = worker or Worker(owner=f"drive:1:x{CHILD_SEPARATOR}1")
    epoch = -1
    try:
        while RunStatus((fresh := AgentRun.objects.get(pk=run.pk)).status) in LIVE - {RunStatus.WAITING}:
            assert fresh.lease_epoch > epoch, f"run {run.pk} was not claimed: the log says why"
            epoch = fresh.lease_epoch
            assert own.drive(run.pk), f"run {run.pk} is {fresh.status} and cannot be driven"
    finally:
        if worker is None:
            own.close(5)
    return fresh


def make_waiting(project: Project | None = None, **settings: Any) -> AgentRun:
    """Create a run that waits for the outcome of its first call, because its worker left after starting the call."""
    settings = {"recorded_effect": "at_most_once", "on_unknown_tool": "wait"} | settings
    run = make_run(make_agent(project, settings=settings))

    def leave(point: str) -> None:
        if point == "tool.marked_running":
            raise ShutdownDue

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chaos, "point", leave)
        worker = Worker()
        worker.drive(run.pk)
        worker.close(5)
    return drive(run)


def make_awaiting_approval(project: Project | None = None, **rule: Any) -> AgentRun:
    """Create a run that plays a recording and waits for the approval of its first call."""
    rules = [{"tools": ".*", "action": "ask", "reason": "It reads files."} | rule]
    return drive(make_run(make_agent(project, policies={"approvals": rules})))


def make_failed(project: Project, prompt: str = "Look into it.") -> AgentRun:
    """Create a run that failed before its first step, like a run whose provider does not exist."""
    run = make_run(make_agent(project), prompt)
    failure = RunFailed(error_type="provider_error", error="The server is overloaded.")
    with transaction.atomic():
        transitions.move(run, RunStatus.FAILED, failure, source=Source.WORKER, reason="provider_error")
    return AgentRun.objects.get(pk=run.pk)
