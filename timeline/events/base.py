"""The names of all event types, the base class of payloads, shared field types, and the registry of payload classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from timeline.reasons import reason_label


class EventType(StrEnum):
    """The registered types of events. Senders may also use custom types."""

    RUN_CREATED = "run.created"
    RUN_STARTED = "run.started"
    RUN_PHASE = "run.phase"
    RUN_WAITING = "run.waiting"
    RUN_PAUSED = "run.paused"
    RUN_RESUMED = "run.resumed"
    RUN_RECOVERED = "run.recovered"
    RUN_ROLLED_BACK = "run.rolled_back"
    RUN_SESSION = "run.session"
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_STOPPED = "run.stopped"
    MESSAGE_ADDED = "message.added"
    LLM_TURN_START = "llm.turn.start"
    LLM_TEXT_DELTA = "llm.text.delta"
    LLM_THINKING_DELTA = "llm.thinking.delta"
    LLM_TEXT = "llm.text"
    LLM_THINKING = "llm.thinking"
    LLM_TURN_END = "llm.turn.end"
    LLM_TURN_ABANDONED = "llm.turn.abandoned"
    LLM_USAGE = "llm.usage"
    LLM_USAGE_MOVED = "llm.usage.moved"
    RETRY_SCHEDULED = "retry.scheduled"
    TOOL_START = "tool.start"
    TOOL_OUTPUT = "tool.output"
    TOOL_END = "tool.end"
    TOOL_OUTCOME_RESOLVED = "tool.outcome_resolved"
    HOOK_DECIDED = "hook.decided"
    SAFETY_BLOCK = "safety.block"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_RESOLVED = "approval.resolved"
    COMMAND_RECEIVED = "command.received"
    POLICY_APPLIED = "policy.applied"
    ERROR = "error"
    BUDGET_WARNING = "budget.warning"
    CONTEXT_TRIMMED = "context.trimmed"
    IMPORT_LEFT_OUT = "import.left_out"
    FILE_CHANGED = "file.changed"
    GIT_COMMIT = "git.commit"
    DEPLOY_TRIGGERED = "deploy.triggered"
    DEPLOY_STATUS = "deploy.status"
    HANDOFF = "handoff"
    CHILD_RUN_STARTED = "child_run.started"
    CHILD_RUN_PHASE = "child_run.phase"
    CHILD_RUN_COMPLETED = "child_run.completed"
    FLOW_STARTED = "flow.started"
    FLOW_RESUMED = "flow.resumed"
    FLOW_COMPLETED = "flow.completed"
    NODE_STARTED = "node.started"
    NODE_COMPLETED = "node.completed"
    NODE_FAILED = "node.failed"
    NODE_SKIPPED = "node.skipped"
    EDGE_FIRED = "edge.fired"
    EDGE_SKIPPED = "edge.skipped"
    LOOP_ITERATED = "loop.iterated"


EVENT_TYPES: frozenset[str] = frozenset(member.value for member in EventType)

MAX_TYPE_LENGTH = 128
#: The pattern of custom types, which JSON Schemas contain too.
CUSTOM_TYPE = r"^x(?:\.[a-z][a-z0-9_]*)+$"
_CUSTOM = re.compile(CUSTOM_TYPE.strip("^$"), re.ASCII)


def is_custom(type_: str) -> bool:
    """Return whether a type is custom: its name begins with `x.`, and its payload may be any object."""
    return len(type_) <= MAX_TYPE_LENGTH and _matches_custom(type_)


@lru_cache(maxsize=1024)
def _matches_custom(type_: str) -> bool:
    return _CUSTOM.fullmatch(type_) is not None


# Within the range of a bigint column, in which counts are added up. Payloads are strict: True and "7" are not counts.
_FITS = Field(ge=0, lt=2**63)
Count = Annotated[int, _FITS]
# External runners may send fractions; the log stores whole milliseconds.
Millis = Annotated[int, _FITS] | Annotated[float, _FITS, AfterValidator(round)]
Name = Annotated[str, Field(min_length=1)]
# Not strict: JSON has no time type, so times arrive as strings.
Moment = Annotated[AwareDatetime, Field(strict=False)]
# Accepts decimals and numbers, stores text: money must not be converted to float.
Money = Annotated[str, Field(strict=False, coerce_numbers_to_str=True)]


class Payload(BaseModel):
    """The payload of an event. Field names are accepted in camel case and snake case, and stored in snake case."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, alias_generator=to_camel, populate_by_name=True
    )
    event_type: ClassVar[str] = ""
    event_kind: ClassVar[EventKind]

    message: str = ""
    #: Additional fields from an external runner, under their own names.
    extra: dict[str, JsonValue] | None = None

    def describe(self) -> str:
        """Return a short sentence about the event, used if it has no `message`."""
        raise NotImplementedError


P = TypeVar("P", bound="Payload")

REGISTRY: dict[str, type[Payload]] = {}


class Show(StrEnum):
    """The filters of a timeline. `ERRORS` includes events of all types that report a failure."""

    ALL = "all"
    MESSAGES = "messages"
    TOOLS = "tools"
    ERRORS = "errors"


@dataclass(frozen=True, slots=True)
class Family:
    """Event types whose rows have the same template, `timeline/events/<name>.html`, and CSS class, `row-<name>`."""

    name: str
    #: Its name in the filter of a run's stored events.
    label: str
    icon: str
    #: The filter of the timeline that includes its rows, and the cards made of its events.
    show: Show | None = None


@dataclass(frozen=True, slots=True)
class EventKind:
    """Everything known about an event type besides its payload. Decorates the payload class."""

    #: Templates read the attributes of a kind. Without this, Django's templates would call it.
    do_not_call_in_templates: ClassVar[bool] = True

    event_type: str
    family: Family
    _: KW_ONLY
    #: The status of the run after the event, which also has an icon.
    status: str = ""
    #: The payload field that contains the status.
    status_field: str = ""
    #: The icon of its rows, if it is not that of the status or the family.
    icon: str = ""
    #: Whether it ends a log: afterwards only late events are accepted, and live streams end.
    is_terminal: bool = False
    #: Whether external runners must not send it, because it records a decision of this server.
    is_reserved: bool = False
    #: Whether it always reports a failure.
    is_failure: bool = False
    #: Whether its payload determines if it reports a failure (timeline/shown_events.py).
    is_outcome: bool = False
    #: Whether its rows are always warnings.
    is_warning: bool = False
    #: Payload field → values with which its rows are warnings.
    warns_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Payload field → values that deny a call. Its rows are then warnings with the icon of a denial.
    denies_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Whether it starts a wait for a person or a time. The minimap marks waits.
    is_wait: bool = False
    #: Whether it is a piece of a streamed text. It has no row, and is read only if the full text is not stored.
    is_chunk: bool = False
    #: Whether it starts a model call or a tool call, which has a card in the timeline.
    opens_card: bool = False
    #: Whether it ends such a call.
    ends_card: bool = False
    #: Whether it changes the status of a tool call.
    updates_call: bool = False
    #: Whether the filter of the family includes it.
    in_filter: bool = True
    #: The level of its log line for operators; None without a line.
    log_level: int | None = None

    def __call__(self, cls: type[P]) -> type[P]:
        """Register a payload class for the type. Raises `ValueError` if the type already has one."""
        if self.event_type in REGISTRY:
            raise ValueError(f"{self.event_type} is already {REGISTRY[self.event_type].__name__}")
        cls.event_type, cls.event_kind = str(self.event_type), self
        REGISTRY[cls.event_type] = cls
        return cls

    @property
    def show(self) -> Show | None:
        """Return the filter that includes its rows, in addition to `ALL` and possibly `ERRORS`; None without one."""
        return self.family.show if self.in_filter else None


CUSTOM = EventKind("", Family("custom", "Custom events", icon="notice"))


def kind_of(type_: str) -> EventKind:
    """Return the kind of an event type. Custom and unknown types have the kind `CUSTOM`."""
    cls = REGISTRY.get(type_)
    return CUSTOM if cls is None else cls.event_kind


def types_that(holds: Callable[[EventKind], object]) -> frozenset[str]:
    """Return the event types for whose kinds `holds` is true."""
    return frozenset(type_ for type_, cls in REGISTRY.items() if holds(cls.event_kind))


def sentence(head: str, *facts: str | None) -> str:
    """Join the facts that are set: `sentence("Paused", "by ada", None)` is "Paused by ada"."""
    return " ".join([head, *(fact for fact in facts if fact)])


def because(reason: str | None) -> str | None:
    """Return a reason code as a phrase, or another text, in parentheses, for `sentence`."""
    return f"({reason_label(reason)})" if reason else None


def by(actor: str | None) -> str | None:
    """Return "by <actor>", for `sentence`."""
    return f"by {actor}" if actor else None


def number(count: int | None, noun: str) -> str | None:
    """Return a count with its noun: `number(1, "step")` is "1 step". None for None."""
    return None if count is None else f"{count:,} {noun}{'' if count == 1 else 's'}"


def seconds(ms: int | float | None) -> str | None:
    """Return a duration: `seconds(1500)` is "in 1.5 s", `seconds(40)` "in 40 ms". None for None."""
    if ms is None:
        return None
    return f"in {ms:.0f} ms" if ms < 1000 else f"in {ms / 1000:.1f} s"
