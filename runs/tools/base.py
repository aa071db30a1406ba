"""The interface of a tool: its effect, context, result and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import JsonValue as JSON
from pydantic_ai.tools import ToolDefinition

from runs.statuses import Effect
from runs.tools.output import MAX_MESSAGE, Output, as_output, clip, limit_size
from timeline.events.base import Payload

__all__ = [
    "JSON",
    "Arguments",
    "BadArguments",
    "Effect",
    "OutcomeUnknown",
    "RemoteToolset",
    "Tool",
    "ToolContext",
    "ToolDenied",
    "ToolFailed",
    "ToolResult",
    "Toolset",
]

Arguments = str | Mapping[str, JSON]


class ToolFailed(Exception):
    """The tool failed without a result. The error is recorded.

    The call is retried if `retryable` is True and the tool may repeat.
    """

    def __init__(self, error_type: str, message: str = "", *, retryable: bool = False) -> None:
        super().__init__(error_type, message)
        self.error_type = error_type
        self.message = message
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


class OutcomeUnknown(Exception):
    """It is unknown whether the call took effect. The call is never retried automatically."""


class ToolDenied(Exception):
    """The tool rejected the call without doing anything."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class BadArguments(Exception):
    """The model's arguments do not match the schema. The message explains the error to the model."""


def _write_nothing(text: str, stream: str = "stdout") -> None:
    """The default of `ToolContext.write`: discard the output."""


@dataclass(frozen=True)
class ToolContext:
    """The context of a tool call. A tool function receives it as its first parameter."""

    run_id: str
    #: The model's ID of the call, unique within one response.
    call_id: str
    tool_call_pk: str
    #: Identical for all attempts of a call.
    idempotency_key: str
    #: The number of the attempt, from 0.
    attempt: int
    #: The fencing token of the worker's lease.
    epoch: int
    #: The number of the model call in the lineage, from 1.
    model_call: int
    #: The agent's settings at the creation of the run.
    settings: Mapping[str, Any]
    #: cancelled(): whether to end early, after the time limit or when the run is stopped.
    cancelled: Callable[[], bool]
    #: mask(text, before, after): the text with its secrets masked. `before` and `after` are the texts around it.
    mask: Callable[[str, str, str], str]
    #: write(text, stream="stdout"): show output in the timeline while the tool runs, with its secrets masked.
    write: Callable[..., None] = _write_nothing


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call."""

    #: Text, or a list of texts and media.
    output: Output
    #: Whether the output is an error message. The model gets it.
    is_error: bool = False
    #: Whether a retry after an error can succeed. The call is then retried if the tool may repeat.
    retryable: bool = True
    #: Set by recorded tools only. Otherwise the caller measures the duration.
    duration_ms: int | None = None
    #: Payloads of events about the changes of the call, such as `FileChanged` and `GitCommit`.
    events: Sequence[Payload] = ()


@dataclass(frozen=True)
class Tool:
    """A function that the model can call. `execute` parses the arguments and calls the function."""

    name: str
    description: str
    parameters_schema: dict[str, Any]
    execute: Callable[[ToolContext, Arguments], object]
    effect: Effect = Effect.AT_MOST_ONCE
    #: Maximum seconds of a call; None: no limit.
    timeout_s: float | None = 30
    needs_approval: bool = False
    #: Whether it runs on the caller's thread without a time limit. Only for tools that cannot block.
    inline: bool = False
    #: Whether a person gives the result. The run waits for the answer, without a worker.
    asks: bool = False
    #: Whether child runs give the result. The run waits for them, without a worker.
    spawns: bool = False
    #: Whether a successful call ends the run, after the other calls of the turn. The output becomes the run's result.
    ends: bool = False
    #: Whether it uses files below the agent's root, which AGENTOPS_TOOL_ROOTS must allow: see runs.tools.rooted_files.
    reads_files: bool = False
    #: The name of the site setting that enables the tool, see runs.tools.sandbox.switches; empty: always enabled.
    switch: str = ""
    #: Whether an error means that the call had no effect, for tools with the effect at_most_once.
    repeats_after_error: bool = False

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"Tool {self.name!r}: timeout_s must be above 0, not {self.timeout_s!r}.")

    @property
    def may_repeat(self) -> bool:
        """Whether a failed call may be retried. The agent's settings limit the number of retries."""
        return self.effect is not Effect.AT_MOST_ONCE or self.repeats_after_error

    @property
    def may_overlap(self) -> bool:
        """Whether calls may run at the same time as other calls of their turn."""
        runs_alone = self.inline or self.asks or self.ends or self.needs_approval
        return self.effect is not Effect.AT_MOST_ONCE and not runs_alone

    @property
    def definition(self) -> ToolDefinition:
        """The name, description and schema for the model."""
        return ToolDefinition(
            name=self.name, description=self.description, parameters_json_schema=self.parameters_schema
        )

    def run(self, ctx: ToolContext, arguments: Arguments) -> ToolResult:
        """Run the tool on this thread. Raises only ToolFailed, ToolDenied, OutcomeUnknown and KeyboardInterrupt."""
        try:
            value = self.execute(ctx, arguments)
        except BadArguments as error:
            return ToolResult(f"Nothing was run. {error}", is_error=True, retryable=False)
        except (ToolFailed, ToolDenied, OutcomeUnknown, KeyboardInterrupt):
            raise
        except Exception as error:
            raise ToolFailed(type(error).__name__, _message_of(error), retryable=True) from error
        except BaseException as error:
            # SystemExit in a tool must not end the worker.
            raise ToolFailed(type(error).__name__, _message_of(error)) from error
        return _result(value)


class Toolset(Protocol):
    """The tools of one agent."""

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or None."""
        ...

    def definitions(self) -> list[ToolDefinition]:
        """Return the descriptions of the tools for the model."""
        ...


class RemoteToolset(Toolset, Protocol):
    """The tools of a server. The other methods connect on their own if `open` was not called, or after `close`."""

    def open(self) -> None:
        """Request the list of tools from the server, unless it is known. Raises ValueError if this fails."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def _result(value: object) -> ToolResult:
    """Return the value of a tool as a result whose output can be stored."""
    if isinstance(value, ToolResult) and isinstance(value.output, str | list):
        return replace(value, output=limit_size(value.output))
    result = value if isinstance(value, ToolResult) else ToolResult("")
    text, has_text_form = as_output(value.output if isinstance(value, ToolResult) else value)
    if not has_text_form:
        result = replace(result, is_error=True, retryable=False)
    return replace(result, output=text)


def _message_of(error: BaseException) -> str:
    try:
        return clip(str(error), MAX_MESSAGE)
    except BaseException:  # __str__ of an exception can raise too
        return "its message cannot be read"
