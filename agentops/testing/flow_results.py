"""The result of a flow run, and assertions that show the differences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agentops.testing.run_results import RunResult, check_cost, compare


@dataclass(frozen=True)
class FlowResult:
    """A flow run that has ended, is paused, or waits for a person.

    The methods `assert_…` raise `AssertionError` with the differences.
    """

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

    def assert_completed(self) -> None:
        """Check that the flow run has completed."""
        __tracebackhide__ = True
        self.assert_status("completed")

    def assert_status(self, status: str, reason: str | None = None) -> None:
        """Check the status and, if it is given, the reason."""
        __tracebackhide__ = True
        if self.status == status and reason in (None, self.reason):
            return
        expected = status if reason is None else f"{status} ({reason})"
        raise AssertionError(f"the flow run is {self._state()}, not {expected}\n\n{self._tail()}")

    def assert_nodes(self, expected: Mapping[str, str]) -> None:
        """Check the statuses of these nodes."""
        __tracebackhide__ = True
        found = self.nodes
        compare(
            "the nodes differ",
            [f"{node}: {status}" for node, status in expected.items()],
            [f"{node}: {found.get(node, 'not in the flow')}" for node in expected],
        )

    def assert_outputs(self, expected: Mapping[str, Any]) -> None:
        """Check the outputs of these nodes."""
        __tracebackhide__ = True
        found = {node: self.outputs[node] for node in expected if node in self.outputs}
        compare("the outputs differ", _lines(dict(expected)), _lines(found))

    def assert_cost(self, *, at_most: Decimal | float | str) -> None:
        """Check that the cost in US dollars is known and not higher."""
        __tracebackhide__ = True
        check_cost("flow run", self.cost_usd, at_most)

    def assert_same(self, other: FlowResult) -> None:
        """Check that another flow run did the same: snapshot, events, and the run of each node. IDs may differ."""
        __tracebackhide__ = True
        compare("the flow runs differ", self._everything(), other._everything())

    def _everything(self) -> list[str]:
        snapshot = {**self.snapshot, "agentSessions": sorted(self.snapshot["agentSessions"])}
        # Keyed by run IDs.
        del snapshot["runId"], snapshot["inbox"]
        runs = [line for visit, run in sorted(self.runs.items()) for line in (f"run of {visit}:", *run.everything())]
        return [self._state(), *_lines(snapshot), *self.events, *runs]

    def _state(self) -> str:
        return f"{self.status}{f' ({self.reason})' if self.reason else ''}{f': {self.error}' if self.error else ''}"

    def _tail(self) -> str:
        """Return the nodes with their statuses, and the problems of runs that have not completed."""
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
