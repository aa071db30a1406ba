"""Create and change agents, with an audit entry for each change."""

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
    """Create the agent that `definition` describes, or change the existing one to it.

    Omitted fields get their defaults.

    Runs keep the copy of the definition that they were created with. Raises `InvalidAgent`, whose pointer names the
    invalid field, and writes nothing then.
    """
    checked = check(definition)
    fields = checked.model_dump(exclude={"agent_id"})
    _check_usable(Agent(project=project, slug=checked.agent_id, **fields))
    with transaction.atomic():
        # Locked, so that the second of two calls at once sees the result of the first.
        agents = Agent.objects.select_for_update(no_key=True)
        agent, created = agents.get_or_create(project=project, slug=checked.agent_id, defaults=fields)
        if created:
            _audit(by, AgentAuditAction.AGENT_CREATED, agent, before=None, after=fields)
            return agent, "created"
        # Not compared by ==, which takes true, 1 and 1.0 for equal.
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


def changed_config(project: Project, frozen: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frozen agent of a run with `changes`, validated as a definition. Nothing is written.

    Raises `InvalidAgent`, whose pointer names the invalid field, also if the frozen agent is not valid any more.
    """
    fields_before = {name: frozen[name] for name in Definition.model_fields if name in frozen}
    checked = check({**fields_before, **changes})
    fields = checked.model_dump(exclude={"agent_id"})
    _check_usable(Agent(project=project, slug=checked.agent_id, **fields))
    return {**frozen, **fields}


def find(project: Project, agent_id: str) -> Agent:
    """Return the agent of this name. Raises `AgentNotFound`.

    An invalid name is never sent to the database.
    """
    is_valid = re.match(SLUG_PATTERN, agent_id)
    agent = Agent.objects.filter(project=project, slug=agent_id).first() if is_valid else None
    if agent is None:
        raise AgentNotFound(f"there is no agent {agent_id[:64]!r} in project {project.slug!r}")
    return agent


def recorded_prompt(agent: Agent) -> UserTurn | None:
    """Return the user message with which a fixture agent's recording begins; None if there is none."""
    if agent.provider != RECORDINGS:
        return None
    try:
        return library.load(agent.model).answers[0].input.prompt
    except (library.FixtureNotFound, FixtureError) as error:
        raise InvalidAgent(str(error), pointer="/model") from error


def _check_usable(agent: Agent) -> None:
    """Raise `InvalidAgent` if a run of the agent could not start, with a pointer to the invalid field."""
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
        raise InvalidAgent(str(error), pointer=_invalid_field(agent, error.__cause__)) from error.__cause__
    except (ValueError, TypeError) as error:
        # Building a toolset reads the settings before they have been validated.
        raise InvalidAgent(f"a toolset cannot use these settings: {error}", pointer="/settings") from error


def _invalid_field(agent: Agent, cause: BaseException | None) -> str:
    match cause:
        case UnknownTool():
            return f"/tools/{agent.tools.index(cause.names[0])}"
        case RootRefused():
            return f"/{cause.member}"
    return "/settings"


def _audit(
    by: audit.Actor, action: AgentAuditAction, agent: Agent, *, before: dict[str, Any] | None, after: dict[str, Any]
) -> None:
    """Record the change. The audit log keeps settings redacted, since they may hold secrets."""
    version: dict[str, Any] = {"agent_id": agent.slug, "version": agent.version}
    before_values, _ = REDACTOR.clean(before)
    after_values, _ = REDACTOR.clean({**version, **after})
    audit.record(by, action, project=agent.project, obj=agent, before=before_values, after=after_values)  # type: ignore[arg-type]
