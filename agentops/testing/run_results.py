"""The results of runs and of flow runs, and assertions whose messages show the differences."""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

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


class _Result:
    """The common part of the results of runs and flow runs."""

    #: For messages: "run" or "flow run".
    _name: ClassVar[str]
    status: str
    reason: str
    error: str
    cost_usd: Decimal | None
    unpriced_calls: int

    def assert_completed(self) -> None:
        """Check that the status is `completed`."""
        __tracebackhide__ = True
        self.assert_status("completed")

    def assert_status(self, status: str, reason: str | None = None) -> None:
        """Check the status and, if it is given, the reason."""
        __tracebackhide__ = True
        if self.status == status and reason in (None, self.reason):
            return
        expected = status if reason is None else f"{status} ({reason})"
        raise AssertionError(f"the {self._name} is {self._state_text()}, not {expected}\n\n{self._tail()}")

    def assert_cost(self, *, at_most: Decimal | float | str) -> None:
        """Check that the cost in US dollars is completely known, and not higher than `at_most`."""
        __tracebackhide__ = True
        if self.cost_usd is None:
            raise AssertionError(f"the cost of the {self._name} is not known: its model has no price")
        if self.unpriced_calls:
            problem = f"the {self._name} costs at least {self.cost_usd:f} USD, {calls_unpriced(self.unpriced_calls)}"
            raise AssertionError(problem)
        if self.cost_usd > Decimal(str(at_most)):
            raise AssertionError(f"the {self._name} costs {self.cost_usd:f} USD, more than {at_most}")

    def _state_text(self) -> str:
        """Return the status, with the reason and the error, if any."""
        return f"{self.status}{f' ({self.reason})' if self.reason else ''}{f': {self.error}' if self.error else ''}"

    def _tail(self) -> str:
        """Return lines that help to explain a failure."""
        raise NotImplementedError


@dataclass(frozen=True)
class RunResult(_Result):
    """A run that has ended, is paused or waits for a person. `assert_…` raise `AssertionError` with the differences."""

    _name = "run"
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
        pairs = [(each, None) if isinstance(each, str) else each for each in expected]
        lines = [name if arguments is None else f"{name} {_compact(arguments)}" for name, arguments in pairs]
        # Further calls are compared by name.
        compared = [*(arguments for _, arguments in pairs), *[None] * len(self.tool_calls)]
        actual = [_call_line(call, arguments) for call, arguments in zip(self.tool_calls, compared, strict=False)]
        compare("the tool calls differ", lines, actual)

    def assert_transcript(self, expected: str) -> None:
        """Check the whole conversation against `transcript`, ignoring the indentation of the expected text."""
        __tracebackhide__ = True
        compare(
            "the conversation differs", textwrap.dedent(expected).strip().splitlines(), self.transcript.splitlines()
        )

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
        return self._state_text()

    def _tail(self) -> str:
        lines = self.transcript.splitlines()
        return "\n".join([*(["…"] if len(lines) > TAIL else []), *lines[-TAIL:]])


def compare(problem: str, expected: Sequence[str], actual: Sequence[str]) -> None:
    """Raise `AssertionError` with `problem` and the differences if the lines differ."""
    __tracebackhide__ = True
    if list(expected) == list(actual):
        return
    difference = difflib.unified_diff(expected, actual, "expected", "found", lineterm="", n=2)
    raise AssertionError("\n".join([f"{problem}:", *difference]))


def _call_line(call: ToolCall, compared: Mapping[str, Any] | None) -> str:
    """Return the name of a call, with the arguments that `compared` names."""
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


@dataclass(frozen=True)
class FlowResult(_Result):
    """A flow run that has ended, is paused, or waits for a person.

    The methods `assert_…` raise `AssertionError` with the differences.
    """

    _name = "flow run"
    # With unpriced calls, `cost_usd` is None.
    unpriced_calls = 0
    id: str
    #: `completed`, `failed`, `stopped`, `paused` or `waiting` (for answers); `running` if a node is paused or waits for
    #: an approval.
    status: str
    reason: str
    error: str
    #: The snapshot in the form of the API.
    snapshot: Mapping[str, Any]
    #: The runs of agent, tool and human nodes by visit, in the order in which they started: `draft`, `draft#1` (in the
    #: second iteration), `draft#1[0]` (of the first item).
    runs: Mapping[str, RunResult]
    #: The open questions, by visit.
    questions: Mapping[str, str]
    #: The types of the events of the flow run, in order.
    events: Sequence[str]
    #: The cost of all agents in US dollars; None if a price is unknown.
    cost_usd: Decimal | None

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The outputs by node."""
        return dict(self.snapshot["outputs"])

    @property
    def state(self) -> Mapping[str, Any]:
        """The state of the flow."""
        return dict(self.snapshot["state"])

    @property
    def nodes(self) -> Mapping[str, str]:
        """The status of each node: `pending`, `running`, `done`, `failed` or `skipped`."""
        return dict(self.snapshot["nodeStatus"])

    def run(self, visit: str) -> RunResult:
        """Return the run of a visit, such as `draft` or `draft#1`."""
        __tracebackhide__ = True
        if visit not in self.runs:
            raise AssertionError(f"no run of {visit!r}; there are {', '.join(self.runs) or 'none'}\n\n{self._tail()}")
        return self.runs[visit]

    def assert_nodes(self, expected: Mapping[str, str]) -> None:
        """Check the statuses of these nodes."""
        __tracebackhide__ = True
        statuses = self.nodes
        compare(
            "the nodes differ",
            [f"{node}: {status}" for node, status in expected.items()],
            [f"{node}: {statuses.get(node, 'not in the flow')}" for node in expected],
        )

    def assert_outputs(self, expected: Mapping[str, Any]) -> None:
        """Check the outputs of these nodes."""
        __tracebackhide__ = True
        outputs = {node: self.outputs[node] for node in expected if node in self.outputs}
        compare("the outputs differ", _lines(dict(expected)), _lines(outputs))

    def assert_same(self, other: FlowResult) -> None:
        """Check that another flow run did the same: snapshot, events, and the run of each node. IDs may differ."""
        __tracebackhide__ = True
        compare("the flow runs differ", self._everything(), other._everything())

    def _everything(self) -> list[str]:
        snapshot = {**self.snapshot, "agentSessions": sorted(self.snapshot["agentSessions"])}
        # Run IDs differ.
        del snapshot["runId"], snapshot["inbox"]
        runs = [line for visit, run in sorted(self.runs.items()) for line in (f"run of {visit}:", *run.everything())]
        return [self._state_text(), *_lines(snapshot), *self.events, *runs]

    def _tail(self) -> str:
        """Return the nodes with their statuses, and the states and questions of runs that have not completed."""
        lines = []
        for node, status in self.nodes.items():
            lines.append(f"{node}: {status}")
            for visit, run in self.runs.items():
                if visit.partition("#")[0].partition("[")[0] == node and run.status != "completed":
                    question = f": {self.questions[visit]}" if visit in self.questions else ""
                    lines.append(f"  run of {visit}: {run.state}{question}")
        return "\n".join(lines)


def _lines(value: Any) -> list[str]:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1).splitlines()
