"""The keys of steps: the positions at which the calls of a run's methods begin.

The first call has the key "1", the second "2". A task that the function starts, as `asyncio.gather` does, is a branch:
its first call takes the next position of the function, such as "3", and its further calls are numbered below it: "3.1",
"3.2". So the keys of a branch do not depend on how fast the others are.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class _Branch:
    """A sequence of calls: of the function itself, or of a task that it started."""

    #: None until the first call that takes a position of the parent.
    prefix: str | None
    #: The task or thread whose calls these are.
    owner: object
    parent: _Branch | None = None
    calls: int = 0

    def next_key(self) -> str:
        if self.prefix is None:
            assert self.parent is not None
            first = self.parent.next_key()
            self.prefix = f"{first}."
            return first
        self.calls += 1
        return f"{self.prefix}{self.calls}"

    def is_within(self, other: _Branch) -> bool:
        return self is other or (self.parent is not None and self.parent.is_within(other))


#: The prefix of the key of a model's tool call.
CALL_KEY = "call:"

_branch: ContextVar[_Branch | None] = ContextVar("agentops_branch", default=None)
#: The key of the step whose function is executed in this context; empty outside.
current_step: ContextVar[str] = ContextVar("agentops_step", default="")


@dataclass(frozen=True)
class Position:
    """The position of a call."""

    key: str
    branch: Any
    #: Failures whose exceptions the function handled before this call: key and error of each.
    handled: list[tuple[str, dict[str, str]]] = field(default_factory=list)


class Positions:
    """Numbers the calls of one execution of a function."""

    def __init__(self) -> None:
        self._root: _Branch | None = None
        #: Failed steps whose exception may still end the function: key, branch and error of each.
        self._failures: list[tuple[str, _Branch, dict[str, str]]] = []
        self._uses: Counter[str] = Counter()

    def enter(self) -> None:
        """Make the current task or thread the one of the function. Call it once, before the function."""
        self._root = _Branch("", _owner())
        _branch.set(self._root)

    def begin(self, key: str | None = None, *, call_id: str | None = None, takes_position: bool = True) -> Position:
        """Return the position of a call that begins now. `key`: for calls that are identified otherwise.

        `call_id`: the ID of a model's tool call. It is the key, so that tools may start in any order. Branches have
        separate keys, because models of several branches may use the same IDs, as may several answers of one model.

        `takes_position`: whether the first call of a branch takes the next position although it has a key, so that the
        further calls of the branch are numbered in the order in which branches began.

        Raises `RuntimeError` in the function of a step, and in a thread that the function started.
        """
        branch, owner = _branch.get(), _owner()
        if current_step.get():
            raise RuntimeError("methods of the run that are steps cannot be called inside the function of a step")
        if branch is None or self._root is None or not branch.is_within(self._root):
            raise RuntimeError("call the methods of a run in the thread of its function")
        if key is None and call_id is not None:
            key = self._key_of_call(branch, call_id)
        if branch.owner is not owner:
            branch = _Branch(None, owner, parent=branch)
            _branch.set(branch)
        if key is None or (takes_position and branch.prefix is None):
            position = branch.next_key()
            key = key or position
        return Position(key, branch, self._handled_in(branch))

    def _key_of_call(self, branch: _Branch, call_id: str) -> str:
        key = f"{CALL_KEY}{branch.prefix and f'{branch.prefix}/'}{call_id}"
        self._uses[key] += 1
        return key if self._uses[key] == 1 else f"{key}:{self._uses[key]}"

    def failed(self, position: Position, error: dict[str, str]) -> None:
        """Remember a failure. It becomes the outcome of its step if the same branch, or one around it, continues."""
        self._failures.append((position.key, position.branch, error))

    def handled_at_end(self) -> list[tuple[str, dict[str, str]]]:
        """Return the failures that a function which has returned has handled after its last call."""
        return [(key, error) for key, _, error in self._failures]

    def _handled_in(self, branch: _Branch) -> list[tuple[str, dict[str, str]]]:
        if not self._failures:
            return []
        handled = [(key, error) for key, failed, error in self._failures if failed.is_within(branch)]
        self._failures = [failure for failure in self._failures if not failure[1].is_within(branch)]
        return handled


def _owner() -> object:
    """Return the current task; in a thread without an event loop, the thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()
