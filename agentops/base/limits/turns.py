"""Fair turns for projects in a worker's queues: a backlog of one project only delays that project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def rounds(waiting: Callable[[], Iterable[K]]) -> Iterator[K]:
    """Yield each waiting project once, then query the waiting projects again. Ends when none is waiting.

    A project that starts to wait gets its turn in the next round: at the latest after one turn of each other project.
    """
    while projects := list(waiting()):
        yield from projects


def in_turns(items: Iterable[T], project: Callable[[T], Hashable]) -> list[T]:
    """Return the first item of each project, then the second of each, and so on, each time in the given order."""
    counts: Counter[Hashable] = Counter()
    numbered = []
    for item in items:
        numbered.append((counts[project(item)], item))
        counts[project(item)] += 1
    return [item for _, item in sorted(numbered, key=lambda pair: pair[0])]
