"""The definition of an agent: its fields, and the strict check of what somebody wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentops.http import strict_json
from agentops.projects.errors import InvalidSlug
from agentops.projects.names import clean_slug
from runs.agents import policies, policy_commands
from runs.agents.policies import Policies
from runs.errors import InvalidAgent, InvalidPolicies
from runs.providers.messages import canonical

MAX_DEPTH = strict_json.BODY.depth
MAX_TEXT = strict_json.BODY.string
#: Of a whole definition as JSON: every run of the agent keeps a copy.
MAX_BYTES = 512 * 1024
MAX_POINTER = 200


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


def check(definition: Mapping[str, Any]) -> Definition:
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
        raise InvalidAgent(first["msg"].removeprefix("Value error, "), pointer=pointer_of(first["loc"])) from None
    except policies.InvalidPolicy as error:
        raise InvalidPolicies(str(error), pointer=pointer_of(["policies", *error.path])) from None
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
        raise InvalidAgent(fault, pointer=pointer_of(path))
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


def pointer_of(path: Sequence[str | int]) -> str:
    return strict_json.pointer(path)[:MAX_POINTER]
