"""The result of a run, and assertions that show the differences."""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from timeline.display import calls_unpriced

#: Number of lines from the end of a conversation in a failure message.
TAIL = 12


class UnusableFixture(ValueError):
    """A fixture cannot be read or is invalid. The message names the file and the place in it."""


@dataclass(frozen=True)
class Message:
    """A message of the conversation. `role` is `system`, `user`, `assistant` or `tool_result`."""

    role: str
    #: Without the model's thinking; media are placeholders.
    text: str
    step: int


@dataclass(frozen=True)
class ToolCall:
    """A tool call, with its result."""

    name: str
    #: An object, or the model's text if it is not an object.
    arguments: Any
    #: `completed`, `error`, `denied` or `unknown`; `planned` or `running` if the run waits.
    status: str
    #: The whole output or the error; None before the call ends.
    output: Any
    step: int

    def __str__(self) -> str:
        return f"{self.name} {_compact(self.arguments)}"


@dataclass(frozen=True)
class RunResult:
    """A run that has ended, is paused or waits for a person. `assert_…` raise `AssertionError` with the differences."""

    id: str
    #: `completed`, `failed`, `stopped`, `paused` or `waiting`.
    status: str
    #: Why it waits, is paused or was stopped: `approval`, `max_steps`, `budget` and so on; otherwise empty.
    reason: str
    error: str
    #: The text of the last response, or the argument of the tool `done`.
    result: str
    #: The result in the agent's output schema; None without one.
    structured_output: Any
    messages: Sequence[Message]
    tool_calls: Sequence[ToolCall]
    #: The types of the events, in order.
    events: Sequence[str]
    steps: int
    input_tokens: int
    output_tokens: int
    #: Cost in US dollars; None if no price is known.
    cost_usd: Decimal | None
    #: Number of model calls with unknown cost, which `cost_usd` does not include.
    unpriced_calls: int = 0

    @property
    def transcript(self) -> str:
        """The conversation as text: a paragraph for each message and tool call, without IDs and times."""
        calls: dict[int, list[ToolCall]] = {}
        for call in self.tool_calls:
            calls.setdefault(call.step, []).append(call)
        parts: list[str] = []
        for message in self.messages:
            if message.role == "tool_result":
                continue
            if message.text or message.role != "assistant":
                parts.append(f"{message.role}: {message.text}")
            if message.role == "assistant":
                for call in calls.get(message.step, []):
                    parts += [f"call: {call}", f"{call.status}: {_text(call.output)}"]
        return "\n".join(parts)

    def assert_completed(self) -> None:
        """Check that the run has completed."""
        __tracebackhide__ = True
        self.assert_status("completed")

    def assert_status(self, status: str, reason: str | None = None) -> None:
        """Check the status and, if it is given, the reason."""
        __tracebackhide__ = True
        if self.status == status and reason in (None, self.reason):
            return
        expected = status if reason is None else f"{status} ({reason})"
        raise AssertionError(f"the run is {self.state}, not {expected}\n\n{self._tail()}")

    def assert_said(self, text: str) -> None:
        """Check that a response of the agent contains the text."""
        __tracebackhide__ = True
        if not any(text in message.text for message in self.messages if message.role == "assistant"):
            raise AssertionError(f"no answer contains {text!r}\n\n{self._tail()}")

    def assert_tool_calls(self, *expected: str | tuple[str, Mapping[str, Any]]) -> None:
        """Check the tools that were called, in order: by name, or by name and arguments.

        Of the arguments, only the given ones are compared: `("refund", {"cents": 500})`.
        """
        __tracebackhide__ = True
        wanted = [(one, None) if isinstance(one, str) else one for one in expected]
        compared = [*(arguments for _, arguments in wanted), *[None] * len(self.tool_calls)]
        found = [_call_line(call, arguments) for call, arguments in zip(self.tool_calls, compared, strict=False)]
        lines = [name if arguments is None else f"{name} {_compact(arguments)}" for name, arguments in wanted]
        compare("the tool calls differ", lines, found)

    def assert_transcript(self, expected: str) -> None:
        """Check the whole conversation against `transcript`, ignoring the indentation of the expected text."""
        __tracebackhide__ = True
        compare(
            "the conversation differs", textwrap.dedent(expected).strip().splitlines(), self.transcript.splitlines()
        )

    def assert_cost(self, *, at_most: Decimal | float | str) -> None:
        """Check that the cost in US dollars is known and not higher."""
        __tracebackhide__ = True
        check_cost("run", self.cost_usd, at_most, self.unpriced_calls)

    def assert_same(self, other: RunResult) -> None:
        """Check that another run did the same: conversation, results of tools, events, tokens, cost and status."""
        __tracebackhide__ = True
        compare("the runs differ", self.everything(), other.everything())

    def everything(self) -> list[str]:
        """Return all data that `assert_same` compares, as lines."""
        cost = "unknown" if self.cost_usd is None else f"{self.cost_usd:f}"
        return [
            *self.transcript.splitlines(),
            *self.events,
            f"{self.steps} steps, {self.input_tokens} and {self.output_tokens} tokens, cost {cost}",
            f"{self.state}, result: {self.result}",
        ]

    @property
    def state(self) -> str:
        """The status, with the reason and the error, if any."""
        return f"{self.status}{f' ({self.reason})' if self.reason else ''}{f': {self.error}' if self.error else ''}"

    def _tail(self) -> str:
        lines = self.transcript.splitlines()
        return "\n".join([*(["…"] if len(lines) > TAIL else []), *lines[-TAIL:]])


def check_cost(name: str, cost_usd: Decimal | None, at_most: Decimal | float | str, unpriced_calls: int = 0) -> None:
    """Raise `AssertionError` if a cost is unknown, even in part, or higher than allowed."""
    __tracebackhide__ = True
    if cost_usd is None:
        raise AssertionError(f"the cost of the {name} is not known: its model has no price")
    if unpriced_calls:
        raise AssertionError(f"the {name} costs at least {cost_usd:f} USD, {calls_unpriced(unpriced_calls)}")
    if cost_usd > Decimal(str(at_most)):
        raise AssertionError(f"the {name} costs {cost_usd:f} USD, more than {at_most}")


def compare(problem: str, expected: Sequence[str], found: Sequence[str]) -> None:
    """Raise `AssertionError` with the differences if the lines differ."""
    __tracebackhide__ = True
    if list(expected) == list(found):
        return
    difference = difflib.unified_diff(expected, found, "expected", "found", lineterm="", n=2)
    raise AssertionError("\n".join([f"{problem}:", *difference]))


def _call_line(call: ToolCall, compared: Mapping[str, Any] | None) -> str:
    """Return a call by its name, with its compared arguments."""
    if compared is None:
        return call.name
    arguments = call.arguments
    if isinstance(arguments, dict):
        arguments = {name: arguments[name] for name in compared if name in arguments}
    return f"{call.name} {_compact(arguments)}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _text(output: Any) -> str:
    return "" if output is None else output if isinstance(output, str) else _compact(output)
