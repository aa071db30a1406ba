"""What a tool is: its declared effect, what it is given, what it gives back, and how it may fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import JsonValue as JSON
from pydantic_ai.tools import ToolDefinition

from runs.statuses import Effect
from runs.tools.output import MAX_MESSAGE, Output, as_output, bounded, clip

__all__ = [
    "JSON",
    "Arguments",
    "BadArguments",
    "Effect",
    "OutcomeUnknown",
    "Tool",
    "ToolContext",
    "ToolDenied",
    "ToolFailed",
    "ToolResult",
    "Toolset",
]

Arguments = str | Mapping[str, JSON]


class ToolFailed(Exception):
    """A hard error: the tool did not answer. It is recorded, and retried where the tool may be repeated."""

    def __init__(self, error_type: str, message: str = "", *, retryable: bool = False) -> None:
        super().__init__(error_type, message)
        self.error_type = error_type
        self.message = message
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


class OutcomeUnknown(Exception):
    """Nobody can know whether it happened. Never tried again by itself."""


class ToolDenied(Exception):
    """The tool's own guard refused the call; nothing was done."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class BadArguments(Exception):
    """The model's arguments do not fit the schema; the text tells the model what to correct."""


@dataclass(frozen=True)
class ToolContext:
    run_id: str
    call_id: str
    tool_call_pk: str
    idempotency_key: str
    attempt: int
    epoch: int
    #: The number of the model call in the lineage, from 1.
    model_call: int
    #: The agent's settings, as the run froze them.
    settings: Mapping[str, Any]
    #: True once nobody waits for the result any more: the time limit passed, or the run was stopped.
    cancelled: Callable[[], bool]
    #: Masks the secrets of a part of a text, given what stands before and after it.
    mask: Callable[[str, str, str], str]


@dataclass(frozen=True)
class ToolResult:
    output: Output
    #: A soft error: the tool answered, and its answer is for the model to deal with.
    is_error: bool = False
    #: Of a soft error: whether the same call may end otherwise. It is then retried where the tool may be repeated.
    retryable: bool = True
    #: Only where a recording dictates it; otherwise whoever runs the tool takes the time.
    duration_ms: int | None = None


@dataclass(frozen=True)
class Tool:
    """A named function that the model may ask for. `execute` parses the arguments and does the work."""

    name: str
    description: str
    parameters_schema: dict[str, Any]
    execute: Callable[[ToolContext, Arguments], object]
    effect: Effect = Effect.AT_MOST_ONCE
    #: None: no time limit.
    timeout_s: float | None = 30
    needs_approval: bool = False
    #: Runs on the caller's own thread, without a time limit: only for tools that cannot block.
    inline: bool = False
    #: Its result is what a person answers: no worker runs it, the run waits.
    asks: bool = False
    #: Its success ends the run when the other calls of the turn have ended; its output is the run's result.
    ends: bool = False
    #: Reads files below the agent's root, which this site has to allow: see runs.tools.roots.
    reads_files: bool = False
    #: Declared by a tool of the effect at_most_once whose errors tell that nothing happened.
    repeats_after_error: bool = False

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"Tool {self.name!r}: timeout_s must be above 0, not {self.timeout_s!r}.")

    @property
    def may_repeat(self) -> bool:
        """Whether a call that ended with an error may be made again; how often, the agent's settings say."""
        return self.effect is not Effect.AT_MOST_ONCE or self.repeats_after_error

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(
            name=self.name, description=self.description, parameters_json_schema=self.parameters_schema
        )

    def run(self, ctx: ToolContext, arguments: Arguments) -> ToolResult:
        """Run it here and now. Raises ToolFailed, ToolDenied, OutcomeUnknown, KeyboardInterrupt; nothing else."""
        try:
            value = self.execute(ctx, arguments)
        except BadArguments as error:
            return ToolResult(f"Nothing was run. {error}", is_error=True, retryable=False)
        except (ToolFailed, ToolDenied, OutcomeUnknown, KeyboardInterrupt):
            raise
        except Exception as error:
            raise ToolFailed(type(error).__name__, _said(error), retryable=True) from error
        except BaseException as error:
            # SystemExit and its kind end this call, never the worker around it.
            raise ToolFailed(type(error).__name__, _said(error)) from error
        return _result(value)


class Toolset(Protocol):
    def get(self, name: str) -> Tool | None: ...

    def definitions(self) -> list[ToolDefinition]: ...


def _result(value: object) -> ToolResult:
    if isinstance(value, ToolResult) and isinstance(value.output, str | list):
        kept = bounded(value.output)
        return value if kept is value.output else replace(value, output=kept)
    told = value if isinstance(value, ToolResult) else ToolResult("")
    text, readable = as_output(value.output if isinstance(value, ToolResult) else value)
    return replace(told, output=text, is_error=told.is_error or not readable, retryable=told.retryable and readable)


def _said(error: BaseException) -> str:
    try:
        return clip(str(error), MAX_MESSAGE)
    except BaseException:  # an exception may fail even at saying what it is
        return "its message cannot be read"
