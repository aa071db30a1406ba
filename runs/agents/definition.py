"""The definition of an agent: its fields and their validation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentops.accounts.errors import InvalidSlug
from agentops.accounts.names import MOST_RUNNING, clean_slug
from agentops.base.http import strict_json
from runs.agents import policies, policy_commands
from runs.agents.placement import DEFAULT_PRIORITY, DEFAULT_QUEUE, LAST_PRIORITY, RESERVED
from runs.agents.placement import FIELDS as PLACEMENT
from runs.agents.policy_errors import InvalidPolicy
from runs.errors import InvalidAgent, InvalidPolicies
from runs.providers.messages import canonical

MAX_DEPTH = strict_json.BODY.depth
MAX_TEXT = strict_json.BODY.string
#: Limit of a whole definition as JSON, in bytes. Every run of the agent stores a copy.
MAX_BYTES = 512 * 1024
MAX_POINTER = 200


def _slug(text: str) -> str:
    """Return a valid slug. Raise ValueError, as pydantic expects it."""
    try:
        return clean_slug(text)
    except InvalidSlug as error:
        raise ValueError(str(error)) from None


def _queue(name: str) -> str:
    if name == RESERVED:
        raise ValueError(f"the queue {name!r} is reserved for the site itself: choose another name")
    return _slug(name)


Line = Annotated[str, Field(min_length=1, max_length=200)]


class Definition(BaseModel):
    """The fields of an agent's definition. Unknown keys are rejected, because they are usually typos."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    agent_id: Annotated[str, AfterValidator(_slug)]
    provider: Annotated[str, Field(min_length=1, max_length=63)]
    model: Line
    instructions: str = ""
    tools: list[Line] = []
    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    settings: dict[str, Any] = {}
    policies: dict[str, Any] = {}
    queue: Annotated[str, AfterValidator(_queue)] = DEFAULT_QUEUE
    priority: Annotated[int, Field(ge=0, le=LAST_PRIORITY)] = DEFAULT_PRIORITY
    max_running: Annotated[int, Field(ge=1, le=MOST_RUNNING)] | None = None

    @property
    def behaviour(self) -> dict[str, Any]:
        """The fields that a run copies."""
        return self.model_dump(exclude=set(PLACEMENT))

    @property
    def placement(self) -> dict[str, Any]:
        """The given fields of the placement. Omitted fields are not changed."""
        return self.model_dump(include=self.model_fields_set & set(PLACEMENT))


@dataclass(frozen=True)
class Examined:
    """A parsed definition and all its errors."""

    #: None if a field has the wrong type or range.
    definition: Definition | None
    #: `InvalidAgent` and `InvalidPolicies`, each with the JSON pointer of an invalid value.
    problems: Sequence[InvalidAgent]


def check(definition: Mapping[str, Any]) -> Definition:
    """Validate a definition and return it as a `Definition`.

    Raises `InvalidAgent` or `InvalidPolicies`, with the JSON pointer of the first invalid value.
    """
    examined = examine(definition)
    for problem in examined.problems:
        raise problem
    assert examined.definition is not None
    return examined.definition


def examine(definition: Mapping[str, Any]) -> Examined:
    """Validate a definition, and return all its errors."""
    try:
        if not isinstance(definition, Mapping):
            raise InvalidAgent("a definition must be an object", pointer="")
        data = dict(definition)
        _check_json(data)
        if len(canonical(data).encode()) > MAX_BYTES:
            raise InvalidAgent(f"the definition is longer than {MAX_BYTES} bytes as JSON", pointer="")
    except InvalidAgent as problem:
        return Examined(None, [problem])
    given = data.get("policies", {}), data.get("settings", {})
    policy_problems = list(_policy_problems(*given)) if all(isinstance(each, dict) for each in given) else []
    try:
        return Examined(Definition.model_validate(data), policy_problems)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        problems = [
            InvalidAgent(fault["msg"].removeprefix("Value error, "), pointer=pointer_of(fault["loc"]))
            for fault in faults
        ]
        return Examined(None, [*problems, *policy_problems])


def _policy_problems(data: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[InvalidPolicies]:
    """Yield the errors of the policies. Gates are examined if the rules of their trigger are readable."""
    for name, value in data.items():
        faults = policies.faults(name, value)
        for error in faults or _gate_faults(name, value, settings):
            yield InvalidPolicies(str(error), pointer=pointer_of(["policies", *error.path]))


def _gate_faults(name: str, value: Any, settings: Mapping[str, Any]) -> Iterator[InvalidPolicy]:
    """Yield the gates of a trigger that name an unknown tool, or a command that this site does not allow."""
    for trigger, rules in policies.parse({name: value}).rules.items():
        for index, rule in enumerate(rules):
            try:
                if rule.run is not None:
                    policy_commands.check(rule.run, settings)
            except policy_commands.GateRefused as error:
                at = [trigger, index] if isinstance(value, list) else [trigger]
                yield InvalidPolicy(f"invalid gate: {error}", [*at, "run"])


def _check_json(value: object, path: tuple[str | int, ...] = ()) -> None:
    """Raise `InvalidAgent` for values that JSON cannot express or that not every database can store.

    TOML, for example, has dates and infinity.
    """
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


def json_fault(value: object) -> tuple[str, str] | None:
    """Return the part of a value that cannot be stored, with its JSON pointer; None if the value can be stored."""
    try:
        _check_json(value)
    except InvalidAgent as error:
        return str(error), str(error.data["pointer"])
    return None


def _fault(value: object) -> str:
    match value:
        case str():
            if len(value) > MAX_TEXT:
                return f"longer than {MAX_TEXT} characters"
            is_storable = "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
            return "" if is_storable else "contains a NUL character or an unpaired surrogate"
        case bool() | None:
            return ""
        case int():
            return "" if abs(value) < 2**63 else "out of range: write it as text"
        case float():
            return "" if math.isfinite(value) else "not a finite number"
        case dict():
            return "" if all(isinstance(key, str) for key in value) else "a key is not a string"
        case list():
            return ""
    return f"a {type(value).__name__} is not a JSON value: write it as text"


def pointer_of(path: Sequence[str | int]) -> str:
    """Return a path as a JSON pointer of at most 200 characters."""
    return strict_json.pointer(path)[:MAX_POINTER]
