"""The definition of an agent: its fields, their validation, and parsing it from TOML or JSON."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentops.accounts.errors import InvalidSlug
from agentops.accounts.names import MOST_RUNNING, clean_slug
from agentops.base.http import strict_json
from runs.agents import policies, policy_commands
from runs.agents.call_rules import InvalidPolicy
from runs.agents.placement import DEFAULT_PRIORITY, DEFAULT_QUEUE, LAST_PRIORITY, RESERVED
from runs.agents.placement import FIELDS as PLACEMENT
from runs.errors import InvalidAgent, InvalidPolicies
from runs.providers.messages import canonical

MAX_DEPTH = strict_json.BODY.depth
MAX_TEXT = strict_json.BODY.string
#: Maximum size of a whole definition as JSON. Each run of the agent stores a copy.
MAX_BYTES = 512 * 1024
#: Maximum characters of a JSON pointer in an error.
MAX_POINTER = 200


def _slug(text: str) -> str:
    """Return a valid slug. Raises ValueError, which pydantic expects from a validator."""
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
        """The fields that a run copies: all but the placement."""
        return self.model_dump(exclude=set(PLACEMENT))

    @property
    def placement(self) -> dict[str, Any]:
        """The fields of the placement that the definition contains; the others keep their stored values."""
        return self.model_dump(include=self.model_fields_set & set(PLACEMENT))


@dataclass(frozen=True)
class Examined:
    """A parsed definition and all its errors."""

    #: None if a field has the wrong type or range.
    definition: Definition | None
    #: `InvalidAgent` or `InvalidPolicies`, each with the JSON pointer of an invalid value.
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
    rules, settings = data.get("policies", {}), data.get("settings", {})
    are_readable = isinstance(rules, dict) and isinstance(settings, dict)
    policy_problems = list(_policy_problems(rules, settings)) if are_readable else []
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
    """Yield the errors of the policies. The gates of a trigger are checked only if its rules are valid otherwise."""
    for name, value in data.items():
        faults = policies.faults(name, value)
        for error in faults or _gate_faults(name, value, settings):
            yield InvalidPolicies(str(error), pointer=pointer_of(["policies", *error.path]))


def _gate_faults(name: str, value: Any, settings: Mapping[str, Any]) -> Iterator[InvalidPolicy]:
    """Yield an error for each gate that names an unknown tool, or a command that the site does not allow."""
    for trigger, rules in policies.parse({name: value}).rules.items():
        for index, rule in enumerate(rules):
            try:
                if rule.run is not None:
                    policy_commands.check(rule.run, settings)
            except policy_commands.GateRefused as error:
                at = [trigger, index] if isinstance(value, list) else [trigger]
                yield InvalidPolicy(f"invalid gate: {error}", [*at, "run"])


def _check_json(value: object, path: tuple[str | int, ...] = ()) -> None:
    """Raise `InvalidAgent` if a part of `value` is not JSON (such as a date in TOML), or cannot be stored."""
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
    """Return why a value cannot be stored, and the JSON pointer of the part; None if it can be stored."""
    try:
        _check_json(value)
    except InvalidAgent as error:
        return str(error), str(error.data["pointer"])
    return None


def _fault(value: object) -> str:
    """Return why this value itself, without its members, cannot be stored; empty if it can."""
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


class NotADefinition(ValueError):
    """The text is neither a JSON object nor TOML. The message gives position and reason."""


def parse_definition(text: str, *, suffix: str = "") -> dict[str, Any]:
    """Parse a definition. The suffix of its file, or else its first character, decides whether it is JSON or TOML.

    Raises `NotADefinition`.
    """
    is_json = suffix == ".json" or (suffix != ".toml" and text.lstrip()[:1] in {"{", ""})
    try:
        definition = strict_json.parse(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NotADefinition(f"not {'JSON' if is_json else 'TOML'}: {reason}") from None
    if not isinstance(definition, dict):
        raise NotADefinition("$: a definition must be an object")
    return definition


def json_path(pointer: str, document: Any) -> str:
    """Convert a JSON pointer to a JSON path: `/tools/0` to `$.tools[0]`.

    `document` is the value that the pointer refers to. The pointer may have been truncated to `MAX_POINTER`.
    """
    path = "$"
    for step in (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]):
        if isinstance(document, list):
            is_index = step.isascii() and step.isdigit() and int(step) < len(document)
            path, document = f"{path}[{step}]", document[int(step)] if is_index else None
        else:
            path, document = f"{path}.{step}", document.get(step) if isinstance(document, Mapping) else None
    return path
