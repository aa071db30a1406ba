"""Creating and changing agents, with the audit entry of each change."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any, Literal

from django.db import transaction

from agentops.projects import audit
from agentops.projects.models import Project
from agentops.projects.names import SLUG_PATTERN
from runs.agents.definition import Definition, check
from runs.errors import InvalidAgent, RunRefusal
from runs.fixtures import library
from runs.fixtures.format import FixtureError
from runs.lifecycle import creation
from runs.lifecycle.creation import UserTurn
from runs.models import Agent
from runs.providers import base as providers
from runs.providers.messages import canonical
from runs.tools.registry import UnknownTool
from runs.tools.roots import RootRefused
from timeline.redaction.redact import DEFAULT as REDACTOR

Outcome = Literal["created", "changed", "unchanged"]

RECORDINGS = "fixture"


class AgentAuditAction(enum.StrEnum):
    AGENT_CREATED = "agent.created"
    AGENT_CHANGED = "agent.changed"


class AgentNotFound(RunRefusal):
    """The project has no agent of this name."""

    code = "agent_not_found"
    status = 404


def apply(project: Project, definition: Mapping[str, Any], *, by: audit.Actor) -> tuple[Agent, Outcome]:
    """Make the agent that `definition` describes, or bring it to that; what is left out has its default.

    Runs keep the copy that they were created with. Raises `InvalidAgent`, whose pointer says what is at fault,
    and then nothing was written.
    """
    checked = check(definition)
    fields = checked.model_dump(exclude={"agent_id"})
    _check_usable(Agent(project=project, slug=checked.agent_id, **fields))
    with transaction.atomic():
        # The row's lock: of two who apply at once, the second sees what the first has made of it.
        agents = Agent.objects.select_for_update(no_key=True)
        agent, created = agents.get_or_create(project=project, slug=checked.agent_id, defaults=fields)
        if created:
            _audit(by, AgentAuditAction.AGENT_CREATED, agent, before=None, after=fields)
            return agent, "created"
        # Not compared by ==, for which true, 1 and 1.0 are one.
        before = {name: getattr(agent, name) for name in fields}
        changed = [name for name in fields if canonical(before[name]) != canonical(fields[name])]
        if not changed:
            return agent, "unchanged"
        for name in changed:
            setattr(agent, name, fields[name])
        agent.version += 1
        agent.save(update_fields=[*changed, "version", "updated_at"])
        after = {name: fields[name] for name in changed}
        _audit(by, AgentAuditAction.AGENT_CHANGED, agent, before={name: before[name] for name in changed}, after=after)
    return agent, "changed"


def edited(project: Project, frozen: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The agent that a run has frozen, with `changes`, checked as a definition is; for a run, nothing is written.

    Raises `InvalidAgent`, whose pointer says what is at fault, also where the agent as it was is of no use any more.
    """
    known = {name: frozen[name] for name in Definition.model_fields if name in frozen}
    checked = check({**known, **changes})
    fields = checked.model_dump(exclude={"agent_id"})
    _check_usable(Agent(project=project, slug=checked.agent_id, **fields))
    return {**frozen, **fields}


def find(project: Project, agent_id: str) -> Agent:
    """The agent of this name. What is no name never reaches the database."""
    known = re.match(SLUG_PATTERN, agent_id)
    agent = Agent.objects.filter(project=project, slug=agent_id).first() if known else None
    if agent is None:
        raise AgentNotFound(f"there is no agent {agent_id[:64]!r} in project {project.slug!r}")
    return agent


def recorded_prompt(agent: Agent) -> UserTurn | None:
    """The user turn that the recording of a fixture agent begins with; None where there is none."""
    if agent.provider != RECORDINGS:
        return None
    try:
        return library.load(agent.model).answers[0].input.prompt
    except (library.NoSuchFixture, FixtureError) as error:
        raise InvalidAgent(str(error), pointer="/model") from error


def _check_usable(agent: Agent) -> None:
    """Whether a run of it could start, asked part by part, so that the answer can say which one is at fault."""
    try:
        provider = providers.get(agent.provider)
    except providers.ProviderUnusable as error:
        raise InvalidAgent(str(error), pointer="/provider") from error
    try:
        provider.check(agent.model, {})
    except providers.ProviderUnusable as error:
        raise InvalidAgent(str(error), pointer="/model") from error
    try:
        creation.check_agent(agent)
    except InvalidAgent as error:
        raise InvalidAgent(str(error), pointer=_at_fault(agent, error.__cause__)) from error.__cause__
    except (ValueError, TypeError) as error:
        # A toolset is made from the settings, and reads them before anyone has looked at them.
        raise InvalidAgent(f"a toolset cannot use these settings: {error}", pointer="/settings") from error


def _at_fault(agent: Agent, cause: BaseException | None) -> str:
    match cause:
        case UnknownTool():
            return f"/tools/{agent.tools.index(cause.names[0])}"
        case RootRefused():
            return f"/{cause.member}"
    return "/settings"


def _audit(
    by: audit.Actor, action: AgentAuditAction, agent: Agent, *, before: dict[str, Any] | None, after: dict[str, Any]
) -> None:
    """Settings may hold what nobody should read again: the trail keeps it redacted."""
    version: dict[str, Any] = {"agent_id": agent.slug, "version": agent.version}
    was, _ = REDACTOR.clean(before)
    now, _ = REDACTOR.clean({**version, **after})
    audit.record(by, action, project=agent.project, obj=agent, before=was, after=now)  # type: ignore[arg-type]
