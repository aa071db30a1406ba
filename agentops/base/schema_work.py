"""The work of one check with a schema: its budget and its caches."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentops.base.fair_shares import WorkBudget
from agentops.base.patterns import Pattern

#: Maximum steps of one check. A step takes about a microsecond. Applying a keyword to a value takes five.
MAX_STEPS = 2_000_000
#: Maximum seconds of CPU time of one check, because the steps may be too few.
CPU_S = 5.0
#: Steps after which a check waits until no other long check runs in this process. Several computing threads would keep
#: the interpreter from the threads that serve other requests.
TURN_AFTER = 200_000
#: Steps of a reference.
REFERENCE = 20
#: Steps of an anchor lookup for each object and list of the schema, because the library searches the whole schema.
SEARCH = 4
#: Maximum references within references. The library recurses for each, and may panic at the interpreter's limit.
MAX_NESTED_REFERENCES = 100


@dataclass
class SchemaWork:
    """One check."""

    budget: WorkBudget
    #: Steps of an anchor lookup.
    search_steps: int = 0
    #: Whether a subschema has an `$id`, so that the lookup of any reference searches the schema.
    has_ids: bool = False
    #: Compiled patterns by text. The caches of the process may be too small for one schema.
    _patterns: dict[str, Pattern] = field(default_factory=dict)
    #: Whether this is the long check that may run now.
    has_turn: bool = False
    nested_references: int = 0

    def take_turn(self) -> None:
        """Wait until no other long check runs, if this check has become long."""
        if self.budget.spent > TURN_AFTER and not self.has_turn:
            _turn.acquire()
            self.has_turn = True

    def measure(self, schema: Any) -> None:
        """Set `search_steps` and `has_ids` for the schema. Raises `WorkExceeded`."""
        todo = [schema]
        while todo:
            item = todo.pop()
            if isinstance(item, Mapping | list):
                # A step reads eight members.
                self.budget.spend(1 + len(item) // 8)
                self.search_steps += SEARCH
                todo += item.values() if isinstance(item, Mapping) else item
                self.has_ids |= item is not schema and isinstance(item, Mapping) and "$id" in item

    def pattern(self, text: str) -> Pattern:
        """Return the compiled pattern of a text. Raises `InvalidPattern`."""
        pattern = self._patterns.get(text)
        if pattern is None:
            pattern = Pattern(text)
            self.budget.spend(2 * pattern.cost.compile_steps)
            self._patterns[text] = pattern
        return pattern

    @contextmanager
    def following(self, reference: str, resolver: Any) -> Iterator[None]:
        """Count a reference while it is followed. Raises `WorkExceeded`, and `RecursionError` for deep nesting."""
        self._spend_reference(reference, resolver)
        if self.nested_references >= MAX_NESTED_REFERENCES:
            raise RecursionError(f"more than {MAX_NESTED_REFERENCES} references lead to each other")
        self.nested_references += 1
        try:
            yield
        finally:
            self.nested_references -= 1

    def _spend_reference(self, reference: str, resolver: Any) -> None:
        """Count the steps of the lookup of a reference. An anchor lookup searches the schema for each dynamic scope."""
        self.budget.spend(REFERENCE + reference.count("/"))
        if self.has_ids or not (reference == "#" or reference.startswith("#/")):
            self.budget.spend(self.search_steps * (1 + sum(1 for _ in resolver.dynamic_scope())))

    def occurs(self, text: str, subject: str) -> bool:
        """Return whether a pattern matches a part of a text."""
        return self.pattern(text).occurs_in(subject, self.budget)


_turn = threading.Lock()
_current: ContextVar[SchemaWork] = ContextVar("the check of this thread")


def current() -> SchemaWork:
    """Return the check of this thread. It is in a variable, because the library passes no context to its keywords."""
    return _current.get()


def new_budget(steps: int | None = None) -> WorkBudget:
    """Return a budget of `steps` (by default `MAX_STEPS`), for one or several checks."""
    limit = MAX_STEPS if steps is None else steps
    return WorkBudget(limit, "steps", cpu_s=CPU_S, watch=lambda: current().take_turn())


@contextmanager
def new_work(budget: WorkBudget | None = None) -> Iterator[SchemaWork]:
    """Begin a check whose work counts towards `budget`, by default a new one. A generator must not yield within it."""
    work = SchemaWork(budget or new_budget())
    token = _current.set(work)
    try:
        yield work
    finally:
        if work.has_turn:
            _turn.release()
        _current.reset(token)
