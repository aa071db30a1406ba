"""The `Tool` interface: effect, context, result and errors of a tool."""

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
    """The tool failed without a result. The error is recorded, and the call is retried if the tool is repeatable."""

    def __init__(self, error_type: str, message: str = "", *, retryable: bool = False) -> None:
        super().__init__(error_type, message)
        self.error_type = error_type
        self.message = message
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


class OutcomeUnknown(Exception):
    """It is unknown whether the call took effect. It is never retried automatically."""


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
    """Discard the output, because no timeline shows it."""


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
    #: Returns True when the result is not needed any more: after the time limit, or when the run is stopped.
    cancelled: Callable[[], bool]
    #: mask(text, before, after): returns the text with its secrets masked. `before` and `after` are its surroundings.
    mask: Callable[[str, str, str], str]
    #: write(text, stream="stdout"): shows output in the timeline while the tool runs, with its secrets masked.
    write: Callable[..., None] = _write_nothing


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call."""

    #: Text, or a list of texts and media.
    output: Output
    #: The tool returned an error, which is passed to the model.
    is_error: bool = False
    #: For errors: whether a retry can succeed. The call is then retried if the tool is repeatable.
    retryable: bool = True
    #: Set by recorded tools only. Otherwise the caller measures the duration.
    duration_ms: int | None = None
    #: The changes of the call for the timeline: payloads such as `FileChanged` and `GitCommit`.
    events: Sequence[Payload] = ()


@dataclass(frozen=True)
class Tool:
    """A function that the model can call. `execute` parses the arguments and runs it."""

    name: str
    description: str
    parameters_schema: dict[str, Any]
    execute: Callable[[ToolContext, Arguments], object]
    effect: Effect = Effect.AT_MOST_ONCE
    #: None: no time limit.
    timeout_s: float | None = 30
    needs_approval: bool = False
    #: Runs on the caller's thread without a time limit. Only for tools that cannot block.
    inline: bool = False
    #: The result is a person's answer: the run waits, and no worker runs the tool.
    asks: bool = False
    #: The result comes from child runs: the run waits for them without a worker.
    spawns: bool = False
    #: A successful call ends the run after the other calls of the turn. The output becomes the run's result.
    ends: bool = False
    #: Reads files below the agent's root, which AGENTOPS_TOOL_ROOTS must allow: see runs.tools.roots.
    reads_files: bool = False
    #: The site setting that enables the tool; see runs.tools.sandbox.switches.
    switch: str = ""
    #: For tools with the effect at_most_once: an error means that the call had no effect.
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
        waits = self.inline or self.asks or self.ends or self.needs_approval
        return self.effect is not Effect.AT_MOST_ONCE and not waits

    @property
    def definition(self) -> ToolDefinition:
        """The name, description and schema for the model."""
        return ToolDefinition(
            name=self.name, description=self.description, parameters_json_schema=self.parameters_schema
        )

    def run(self, ctx: ToolContext, arguments: Arguments) -> ToolResult:
        """Run the tool on the current thread.

        Raises only ToolFailed, ToolDenied, OutcomeUnknown and KeyboardInterrupt.
        """
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
        """Return the tools as they are described to the model."""
        ...


class RemoteToolset(Toolset, Protocol):
    """The tools of a server. Usable without `open`, and after `close`."""

    def open(self) -> None:
        """Request the list of tools from the server, unless it is known.

        Raises ValueError if the server cannot be reached.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def _result(value: object) -> ToolResult:
    if isinstance(value, ToolResult) and isinstance(value.output, str | list):
        stored_output = limit_size(value.output)
        return value if stored_output is value.output else replace(value, output=stored_output)
    tool_result = value if isinstance(value, ToolResult) else ToolResult("")
    text, readable = as_output(value.output if isinstance(value, ToolResult) else value)
    return replace(
        tool_result,
        output=text,
        is_error=tool_result.is_error or not readable,
        retryable=tool_result.retryable and readable,
    )


def _message_of(error: BaseException) -> str:
    try:
        return clip(str(error), MAX_MESSAGE)
    except BaseException:  # __str__ of an exception can raise too
        return "its message cannot be read"
