"""The work of one check against a schema: its budget, and its caches."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentops.base.limits.patterns import Pattern
from agentops.base.limits.work_budget import WorkBudget

#: Steps of one check. A step takes about a microsecond; a keyword that is applied to a value, five.
MAX_STEPS = 2_000_000
#: A second limit, because the step counts may be too low.
CPU_S = 5.0
#: Steps after which a check waits for other long checks in this process. Several computing threads would take the
#: interpreter from the threads that serve other requests.
TURN_AFTER = 200_000
#: Steps of a reference.
REFERENCE = 20
#: Steps of an anchor lookup, for each object and list of the schema: the library searches all of it.
SEARCH = 4


@dataclass
class SchemaWork:
    """One check."""

    budget: WorkBudget
    #: Steps of an anchor lookup.
    search_steps: int = 0
    #: Whether references are resolved from places inside the schema, so that each lookup searches it.
    has_ids: bool = False
    #: Compiled patterns by text: a cache of the process may be too small for one schema.
    _patterns: dict[str, Pattern] = field(default_factory=dict)

    #: Whether other long checks are waiting for this one.
    has_turn: bool = False

    def take_turn(self) -> None:
        """Wait for other long checks, if this check has become long."""
        if self.budget.spent > TURN_AFTER and not self.has_turn:
            _turn.acquire()
            self.has_turn = True

    def measure(self, schema: Any) -> None:
        """Store the size of the schema. Raises `WorkExceeded`."""
        waiting = [schema]
        while waiting:
            current = waiting.pop()
            if isinstance(current, Mapping | list):
                self.budget.spend(1 + len(current) // 8)
                self.search_steps += SEARCH
                waiting += current.values() if isinstance(current, Mapping) else current
                self.has_ids |= current is not schema and isinstance(current, Mapping) and "$id" in current

    def pattern(self, text: str) -> Pattern:
        """Return a pattern. Raises `InvalidPattern`."""
        pattern = self._patterns.get(text)
        if pattern is None:
            pattern = Pattern(text)
            self.budget.spend(2 * pattern.cost.compile_steps)
            self._patterns[text] = pattern
        return pattern

    def spend_reference(self, reference: str, resolver: Any) -> None:
        """Count the resolution of a reference. An anchor lookup searches the whole schema, for each of its scopes."""
        self.budget.spend(REFERENCE + reference.count("/"))
        if self.has_ids or not (reference == "#" or reference.startswith("#/")):
            self.budget.spend(self.search_steps * (1 + sum(1 for _ in resolver.dynamic_scope())))

    def occurs(self, text: str, subject: str) -> bool:
        """Return whether a pattern matches a part of a text."""
        return self.pattern(text).occurs_in(subject, self.budget)


_turn = threading.Lock()
_current: ContextVar[SchemaWork] = ContextVar("the check that this thread does")


def current() -> SchemaWork:
    """Return the check of this thread. The library passes no context to its keywords, so a variable holds it."""
    return _current.get()


def new_budget(steps: int | None = None) -> WorkBudget:
    """Return the budget of one or several checks; by default `MAX_STEPS` steps."""
    limit = MAX_STEPS if steps is None else steps
    return WorkBudget(limit, "steps", cpu_s=CPU_S, watch=lambda: current().take_turn())


@contextmanager
def new_work(budget: WorkBudget | None = None) -> Iterator[SchemaWork]:
    """Begin a check that counts towards `budget` (None: a new budget). A generator must not yield within."""
    work = SchemaWork(budget or new_budget())
    token = _current.set(work)
    try:
        yield work
    finally:
        if work.has_turn:
            _turn.release()
        _current.reset(token)
