"""Agent definitions: the strict check of one, and the row that it makes or changes, with its audit entry.

May import identity, the record, runs' models, creation and the pure parts.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from django.db import transaction
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentops.http import strict_json
from agentops.projects import audit
from agentops.projects.errors import InvalidSlug
from agentops.projects.models import SLUG_PATTERN, Project
from agentops.projects.names import clean_slug
from runs.agents import policies, policy_commands
from runs.agents.policies import Policies
from runs.conversation.messages import canonical
from runs.errors import InvalidAgent, InvalidPolicies, RunError
from runs.fixtures import library
from runs.fixtures.format import FixtureError
from runs.lifecycle import creation
from runs.lifecycle.creation import UserTurn
from runs.models import Agent
from runs.providers import base as providers
from runs.tools.registry import UnknownTool
from runs.tools.roots import RootRefused
from timeline.redaction.redact import DEFAULT as REDACTOR

Outcome = Literal["created", "changed", "unchanged"]

MAX_DEPTH = strict_json.BODY.depth
MAX_TEXT = strict_json.BODY.string
#: Of a whole definition as JSON: every run of the agent keeps a copy.
MAX_BYTES = 512 * 1024
MAX_POINTER = 200
RECORDINGS = "fixture"


class Audited(enum.StrEnum):
    AGENT_CREATED = "agent.created"
    AGENT_CHANGED = "agent.changed"


class AgentNotFound(RunError):
    """The project has no agent of this name."""

    code = "agent_not_found"
    status = 404


def _slug(text: str) -> str:
    try:
        return clean_slug(text)
    except InvalidSlug as error:
        raise ValueError(str(error)) from None


Line = Annotated[str, Field(min_length=1, max_length=200)]


class Definition(BaseModel):
    """What a definition may say. A key that is not here is a typing mistake, and refused as one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    agent_id: Annotated[str, AfterValidator(_slug)]
    provider: Annotated[str, Field(min_length=1, max_length=63)]
    model: Line
    instructions: str = ""
    tools: list[Line] = []
    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    settings: dict[str, Any] = {}
    policies: dict[str, Any] = {}


def apply(project: Project, definition: Mapping[str, Any], *, by: audit.Actor) -> tuple[Agent, Outcome]:
    """Make the agent that `definition` describes, or bring it to that; what is left out has its default.

    Runs keep the copy that they were created with. Raises `InvalidAgent`, whose pointer says what is at fault,
    and then nothing was written.
    """
    wanted = _checked(definition)
    fields = wanted.model_dump(exclude={"agent_id"})
    _check_usable(Agent(project=project, slug=wanted.agent_id, **fields))
    with transaction.atomic():
        # The row's lock: of two who apply at once, the second sees what the first has made of it.
        agents = Agent.objects.select_for_update(no_key=True)
        agent, created = agents.get_or_create(project=project, slug=wanted.agent_id, defaults=fields)
        if created:
            _audit(by, Audited.AGENT_CREATED, agent, before=None, after=fields)
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
        _audit(by, Audited.AGENT_CHANGED, agent, before={name: before[name] for name in changed}, after=after)
    return agent, "changed"


def edited(project: Project, frozen: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The agent that a run has frozen, with `changes`, checked as a definition is; for a run, nothing is written.

    Raises `InvalidAgent`, whose pointer says what is at fault, also where the agent as it was is of no use any more.
    """
    known = {name: frozen[name] for name in Definition.model_fields if name in frozen}
    wanted = _checked({**known, **changes})
    fields = wanted.model_dump(exclude={"agent_id"})
    _check_usable(Agent(project=project, slug=wanted.agent_id, **fields))
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


def _checked(definition: Mapping[str, Any]) -> Definition:
    if not isinstance(definition, Mapping):
        raise InvalidAgent("a definition is an object", pointer="")
    given = dict(definition)
    _check_json(given)
    if len(canonical(given).encode()) > MAX_BYTES:
        raise InvalidAgent(f"a definition has at most {MAX_BYTES} bytes", pointer="")
    try:
        wanted = Definition.model_validate(given)
        _check_gates(policies.parse(wanted.policies), wanted.policies, wanted.settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise InvalidAgent(first["msg"].removeprefix("Value error, "), pointer=_pointer(first["loc"])) from None
    except policies.InvalidPolicy as error:
        raise InvalidPolicies(str(error), pointer=_pointer(["policies", *error.path])) from None
    return wanted


def _check_gates(wanted: Policies, given: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Whether what its gates name is there, and may be asked on this site."""
    for trigger, rules in wanted.rules.items():
        for place, rule in enumerate(rules):
            try:
                if rule.run is not None:
                    policy_commands.check(rule.run, settings)
            except policy_commands.GateRefused as error:
                at = [trigger, place] if isinstance(given[trigger], list) else [trigger]
                raise policies.InvalidPolicy(f"no gate: {error}", [*at, "run"]) from error


def _check_json(value: object, path: tuple[str | int, ...] = ()) -> None:
    """Refuse what JSON cannot say (TOML has dates and infinity) and what not every database can store."""
    fault = "nested too deeply" if len(path) > MAX_DEPTH else _fault(value)
    if fault:
        raise InvalidAgent(fault, pointer=_pointer(path))
    if isinstance(value, dict):
        for key, member in value.items():
            _check_json(key, (*path, str(key)))
            _check_json(member, (*path, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, (*path, index))


def _fault(value: object) -> str:
    match value:
        case str():
            if len(value) > MAX_TEXT:
                return f"longer than {MAX_TEXT} characters"
            legible = "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
            return "" if legible else "has NUL or half a surrogate pair in it"
        case bool() | None:
            return ""
        case int():
            return "" if abs(value) < 2**63 else "out of range: write it as text"
        case float():
            return "" if math.isfinite(value) else "not a finite number"
        case dict():
            return "" if all(isinstance(key, str) for key in value) else "a key is no text"
        case list():
            return ""
    return f"a {type(value).__name__} is no JSON value: write it as text"


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


def _pointer(path: Sequence[str | int]) -> str:
    return strict_json.pointer(path)[:MAX_POINTER]


def _audit(
    by: audit.Actor, action: Audited, agent: Agent, *, before: dict[str, Any] | None, after: dict[str, Any]
) -> None:
    """Settings may hold what nobody should read again: the trail keeps it redacted."""
    version: dict[str, Any] = {"agent_id": agent.slug, "version": agent.version}
    was, _ = REDACTOR.clean(before)
    now, _ = REDACTOR.clean({**version, **after})
    audit.record(by, action, project=agent.project, obj=agent, before=was, after=now)  # type: ignore[arg-type]
