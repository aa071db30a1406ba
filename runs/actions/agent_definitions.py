"""Create and change agents, with an audit entry for each change."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from django.db import transaction
from django.db.models import QuerySet
from pydantic import ValidationError

from agentops.accounts import audit
from agentops.accounts.models import Project
from agentops.accounts.names import SLUG_PATTERN
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict, NotFound
from runs.agents.definition import Definition, check, examine
from runs.errors import InvalidAgent
from runs.fixtures import fixture_files
from runs.fixtures.format import FixtureError
from runs.lifecycle import creation, places
from runs.lifecycle.creation import UserTurn
from runs.models import Agent, AgentVersion
from runs.providers import base as providers
from runs.providers.messages import canonical
from runs.tools.catalogue import UnknownTool
from runs.tools.rooted_files import RootRefused
from runs.tools.sandbox.switches import ToolOff

Outcome = Literal["created", "changed", "unchanged"]

#: The provider that plays fixtures.
FIXTURES = "fixture"
#: The setting at the start of an error message, as in "settings.budgets.tokens must be …".
SETTING = re.compile(r"settings(\.[a-z_]+)+")
#: Valid values in place of invalid required fields, so that the other fields can be checked.
PLACEHOLDERS = {"agent_id": "agent", "provider": "fixture", "model": "none"}


class AgentAuditAction(enum.StrEnum):
    AGENT_CREATED = "agent.created"
    AGENT_CHANGED = "agent.changed"


class AgentChanged(Conflict):
    """The agent was changed or created by another request. `data["version"]` is its current version."""

    code = "agent_changed"


class AgentNotFound(NotFound):
    """The project has no agent of this name."""

    code = "agent_not_found"


def apply(
    project: Project,
    definition: Mapping[str, Any],
    *,
    by: audit.Actor,
    expected_version: int | None = None,
    expected_placement: Mapping[str, Any] | None = None,
) -> tuple[Agent, Outcome]:
    """Create the agent described by `definition`, or change the existing one. Omitted fields get defaults.

    Omitted parts of the placement stay unchanged. A change of only the placement creates no version, and also applies
    to unended runs. Otherwise runs keep their copy of the definition.

    `expected_version`: the version that the caller has read; 0 if it expects no agent of this name; None to skip the
    check. `expected_placement`: the placement that the caller has read, which has no versions; None to skip the check.
    Writes nothing and raises `InvalidAgent`, whose pointer names the invalid field, or `AgentChanged`.
    """
    checked = _usable(project, definition)
    slug, behaviour, placement = checked.agent_id, checked.behaviour, checked.placement
    del behaviour["agent_id"]
    fields = behaviour | placement
    with transaction.atomic():
        # Before the lock of the agent, because claims lock runs before agents.
        places.follow(project, slug, placement)
        # Locked, so that of two concurrent calls the second sees the result of the first.
        agents = Agent.objects.select_for_update(no_key=True)
        agent, created = agents.get_or_create(project=project, slug=slug, defaults=fields)
        if created:
            _store_version(agent, by)
            _audit(by, AgentAuditAction.AGENT_CREATED, agent, before=None, after=fields)
            return agent, "created"
        # Not compared with ==, for which true, 1 and 1.0 are equal.
        before = {name: getattr(agent, name) for name in fields}
        changed = [name for name in fields if canonical(before[name]) != canonical(fields[name])]
        if not changed:
            return agent, "unchanged"
        _refuse_stale(agent, changed, expected_version, expected_placement or {})
        for name in changed:
            setattr(agent, name, fields[name])
        new_in_version = [name for name in changed if name in behaviour]
        agent.version += bool(new_in_version)
        agent.save(update_fields=[*changed, "version", "updated_at"])
        if new_in_version:
            _store_version(agent, by, new_in_version)
        after = {name: fields[name] for name in changed}
        _audit(by, AgentAuditAction.AGENT_CHANGED, agent, before={name: before[name] for name in changed}, after=after)
    return agent, "changed"


def _refuse_stale(
    agent: Agent, changed: Sequence[str], expected_version: int | None, expected_placement: Mapping[str, Any]
) -> None:
    """Raise `AgentChanged` if the caller has read another version, or another value of a placement that it changes."""
    if expected_version not in (None, agent.version):
        raise AgentChanged(f"the agent {agent.slug!r} has version {agent.version} now", version=agent.version)
    for name, value in expected_placement.items():
        if name in changed and getattr(agent, name) != value:
            raise AgentChanged(f"the {name} of the agent {agent.slug!r} has been changed", version=agent.version)


def problems_of(project: Project, definition: Mapping[str, Any]) -> list[InvalidAgent]:
    """Return all reasons why `apply` would refuse a definition, each with the pointer of the invalid field."""
    examined = examine(definition)
    invalid = {str(problem.data["pointer"]).split("/")[1] for problem in examined.problems if problem.data["pointer"]}
    if (checked := examined.definition) is None:
        if not invalid:
            return list(examined.problems)  # problems of the definition as a whole
        # Check the valid fields too, so that the user can correct all problems at once.
        valid = {name: definition[name] for name in Definition.model_fields if name in definition.keys() - invalid}
        try:
            checked = Definition.model_validate({**PLACEHOLDERS, **valid})
        except ValidationError:  # a value that is not JSON: other fields cannot be checked
            return list(examined.problems)
    agent = Agent(project=project, slug=checked.agent_id, **checked.model_dump(exclude={"agent_id"}))
    problems = _problems_of_use(agent)
    others = [each for each in problems if str(each.data["pointer"]).split("/")[1] not in invalid - {"policies"}]
    return [*examined.problems, *others]


def versions_of(agent: Agent) -> QuerySet[AgentVersion]:
    """Return the stored versions of an agent without their definitions, the newest first."""
    return AgentVersion.objects.filter(agent=agent).defer("definition").order_by("-number")


def definition_at(agent: Agent, number: int) -> dict[str, Any] | None:
    """Return the definition of a version; None if the version is not stored."""
    if number == agent.version:
        frozen: dict[str, Any] | None = agent.frozen()
    else:
        frozen = AgentVersion.objects.filter(agent=agent, number=number).values_list("definition", flat=True).first()
    return {name: value for name, value in frozen.items() if name != "version"} if frozen else None


def changed_config(project: Project, frozen: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frozen agent of a run with `changes`, validated as a definition. Writes nothing.

    Raises `InvalidAgent`, whose pointer names the invalid field, also if an unchanged field is no longer valid.
    """
    fields_before = {name: frozen[name] for name in Definition.model_fields if name in frozen}
    return {**frozen, **_usable(project, {**fields_before, **changes}).behaviour}


def find(project: Project, agent_id: str) -> Agent:
    """Return the agent of this name. Raises `AgentNotFound`, for an invalid name without a query."""
    is_valid = re.match(SLUG_PATTERN, agent_id)
    agent = Agent.objects.filter(project=project, slug=agent_id).first() if is_valid else None
    if agent is None:
        raise AgentNotFound(f"there is no agent {agent_id[:64]!r} in project {project.slug!r}")
    return agent


def recorded_prompt(agent: Agent) -> UserTurn | None:
    """Return the user message at the start of a fixture agent's fixture; None for other agents, or without one.

    Raises `InvalidAgent` if the fixture cannot be read.
    """
    if agent.provider != FIXTURES:
        return None
    try:
        return fixture_files.load_named(agent.model, agent.slug).answers[0].input.prompt
    except (fixture_files.FixtureNotFound, providers.FixtureExhausted, FixtureError) as error:
        raise InvalidAgent(str(error), pointer="/model") from error


def _usable(project: Project, definition: Mapping[str, Any]) -> Definition:
    """Return the definition if runs can start from it. Raises `InvalidAgent` with the first problem otherwise."""
    checked = check(definition)
    agent = Agent(project=project, slug=checked.agent_id, **checked.model_dump(exclude={"agent_id"}))
    for problem in _problems_of_use(agent):
        raise problem from problem.__cause__
    return checked


def _problems_of_use(agent: Agent) -> Iterator[InvalidAgent]:
    """Yield the reasons why a run of the agent could not start, each with a pointer to the invalid field."""
    reported = set()
    try:
        provider = providers.get(agent.provider)
    except providers.ProviderUnusable as error:
        reported.add(str(error))
        yield InvalidAgent(str(error), pointer="/provider")
    else:
        try:
            # Without settings, to distinguish an unusable model from settings that the model does not accept.
            provider.check(agent.model, {})
        except providers.ProviderUnusable as error:
            reported.add(str(error))
            yield InvalidAgent(str(error), pointer="/model")
    for problem in creation.agent_problems(agent):
        if str(problem) not in reported:
            reported.add(str(problem))
            problem.data["pointer"] = _invalid_field(agent, problem.__cause__)
            yield problem


def _invalid_field(agent: Agent, cause: BaseException | None) -> str:
    """Return the pointer of the field that an error is about, by its type or its text."""
    match cause:
        case UnknownTool():
            return f"/tools/{agent.tools.index(cause.names[0])}"
        case RootRefused():
            return f"/{cause.member}"
        case ToolOff():
            return "/tools"
    setting = SETTING.match(str(cause))
    return f"/{setting[0].replace('.', '/')}" if setting else "/settings"


def _store_version(agent: Agent, by: audit.Actor, changed: Sequence[str] = ()) -> None:
    AgentVersion.of(agent, by=by if isinstance(by, str) else by.actor, changed=changed).save(force_insert=True)


def _audit(
    by: audit.Actor, action: AgentAuditAction, agent: Agent, *, before: dict[str, Any] | None, after: dict[str, Any]
) -> None:
    """Record the change. The audit log keeps settings redacted, since they may contain secrets."""
    version: dict[str, Any] = {"agent_id": agent.slug, "version": agent.version}
    before_values, _ = REDACTOR.clean(before)
    after_values, _ = REDACTOR.clean({**version, **after})
    audit.record(by, action, project=agent.project, obj=agent, before=before_values, after=after_values)  # type: ignore[arg-type]
