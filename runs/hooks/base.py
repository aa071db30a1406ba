"""The interface of a hook: its events, its context and its verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import JsonValue as JSON

__all__ = ["JSON", "Hook", "HookContext", "HookEvent", "InvalidHook", "Verdict", "VerdictKind"]

#: Maximum characters of a verdict's reason, and of a message. Longer ones are cut.
MAX_REASON, MAX_MESSAGE = 1_000, 20_000


class HookEvent(StrEnum):
    """The events of a run at which hooks are called."""

    AGENT_START = "AgentStart"  # before the first model call of a run
    TURN_START = "TurnStart"  # before each model call
    TURN_END = "TurnEnd"  # after the last tool call of a turn, or an answer without tool calls
    PRE_TOOL_USE = "PreToolUse"  # before a tool call
    POST_TOOL_USE = "PostToolUse"  # after a successful tool call
    POST_TOOL_USE_FAILURE = "PostToolUseFailure"  # after the last attempt of a failed tool call
    AGENT_STOP = "AgentStop"  # before a run completes


#: The events that are not about a tool call.
TURN_EVENTS = frozenset({HookEvent.AGENT_START, HookEvent.TURN_START, HookEvent.TURN_END, HookEvent.AGENT_STOP})


class VerdictKind(StrEnum):
    """The kinds of verdicts. The first four are for PreToolUse, the others for all other events."""

    DENY = "deny"
    ASK = "ask"
    MODIFY_ARGS = "modify_args"
    ALLOW = "allow"
    STOP = "stop"
    SYSTEM_MESSAGE = "system_message"
    APPEND_CONTEXT = "append_context"
    CONTINUE = "continue"


#: The verdicts about a tool call, and those at the other events, the strongest first.
CALL_ORDER = (VerdictKind.DENY, VerdictKind.ASK, VerdictKind.MODIFY_ARGS, VerdictKind.ALLOW)
TURN_ORDER = (VerdictKind.STOP, VerdictKind.SYSTEM_MESSAGE, VerdictKind.APPEND_CONTEXT, VerdictKind.CONTINUE)
#: The verdicts that only a guard may return.
OF_GUARDS = frozenset({VerdictKind.DENY, VerdictKind.ASK, VerdictKind.MODIFY_ARGS, VerdictKind.STOP})


class InvalidHook(ValueError):
    """A hook is unknown, or its options are invalid."""


@dataclass(frozen=True)
class Verdict:
    """A decision of a hook. Use the constructors, such as `Verdict.deny("too expensive")`."""

    kind: VerdictKind
    #: The reason, or the text of a message.
    text: str = ""
    #: The new arguments, for `modify_args`.
    arguments: Mapping[str, JSON] | None = None

    @classmethod
    def allow(cls) -> Verdict:
        """Allow the call, like None."""
        return cls(VerdictKind.ALLOW)

    @classmethod
    def deny(cls, reason: str) -> Verdict:
        """Refuse the call. The model gets the reason as the result."""
        return cls(VerdictKind.DENY, reason)

    @classmethod
    def ask(cls, reason: str) -> Verdict:
        """Pause the run until a person approves or denies the call."""
        return cls(VerdictKind.ASK, reason)

    @classmethod
    def modify_args(cls, arguments: Mapping[str, JSON], reason: str = "") -> Verdict:
        """Run the call with these arguments instead."""
        return cls(VerdictKind.MODIFY_ARGS, reason, arguments)

    @classmethod
    def proceed(cls) -> Verdict:
        """Continue, like None."""
        return cls(VerdictKind.CONTINUE)

    @classmethod
    def stop(cls, reason: str) -> Verdict:
        """Stop the run."""
        return cls(VerdictKind.STOP, reason)

    @classmethod
    def system_message(cls, text: str) -> Verdict:
        """Add a system message to the conversation before the next model call."""
        return cls(VerdictKind.SYSTEM_MESSAGE, text)

    @classmethod
    def append_context(cls, text: str) -> Verdict:
        """Add a user message to the conversation before the next model call."""
        return cls(VerdictKind.APPEND_CONTEXT, text)


@dataclass(frozen=True, kw_only=True)
class HookContext:
    """The facts about the run that a hook gets. Each hook gets its own copy, so its changes have no effect."""

    event: HookEvent
    run_id: str
    agent_id: str
    #: The number of the turn in the lineage, from 1.
    step: int
    #: The cost of the run so far in US dollars; 0 if no price is known.
    cost_usd: Decimal = Decimal(0)
    #: The agent's settings.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The tool, its declared effect and the ID of the call; empty at events that are not about a tool call.
    tool_name: str = ""
    effect: str = ""
    call_id: str = ""
    #: The exact arguments: an object, or a text if the model did not send a JSON object.
    arguments: Mapping[str, JSON] | str = field(default_factory=dict)
    #: The output at PostToolUse, the error at PostToolUseFailure.
    output: JSON = None
    #: The text of the last answer, at TurnEnd and AgentStop.
    answer: str = ""


class Hook:
    """The base class of hooks. Each use in a definition has one instance, which its runs share.

    A hook must be repeatable: if a worker dies before the verdict is stored, the next worker calls the hook again.
    """

    #: The name in definitions.
    name: ClassVar[str] = ""
    events: frozenset[HookEvent] = frozenset()
    #: Whether the hook is a guard. If a guard raises, takes too long or returns an invalid verdict, the call is denied
    #: or the run stopped. Other hooks are observers: they can only add messages, and their failures have no effect.
    guard: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Read the options of the definition. Raises ValueError if they are invalid."""
        if options:
            raise ValueError(f"unknown option {sorted(options)[0][:64]!r}")

    def decide(self, context: HookContext) -> Verdict | None:
        """Return the verdict. None means to allow the call, or to continue."""
        raise NotImplementedError
