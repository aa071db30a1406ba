"""The journal of a claimed run: the outcomes of its steps, and of the runs that it continues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentops.durable.errors import StepMismatch

#: States of steps that have their outcome.
FINAL = frozenset({"done", "failed", "denied"})


class Journal:
    """The stored steps that the function has not reached yet, by key."""

    def __init__(self, function: str) -> None:
        """Prepare an empty journal. `function`: its name and version, for error messages."""
        self._function = function
        self._steps: dict[str, Mapping[str, Any]] = {}
        self._is_past_the_end = False
        #: The number of steps with an outcome among them.
        self._outcomes = 0

    @property
    def is_read(self) -> bool:
        """Whether the function has taken all outcomes. Steps without one may be left."""
        return not self._outcomes

    @property
    def is_replaying(self) -> bool:
        """Whether the function has not reached the end of the journal yet."""
        return bool(self._steps) and not self._is_past_the_end

    def add(self, steps: Iterable[Mapping[str, Any]]) -> None:
        """Add steps as the site returns them."""
        for step in steps:
            self._pop(step["key"])
            self._steps[step["key"]] = step
            self._outcomes += step["state"] in FINAL

    def keys(self, prefix: str) -> list[str]:
        """Return the keys with a prefix of the stored steps that the function has not taken."""
        return [key for key in self._steps if key.startswith(prefix)]

    def has_outcome(self, key: str) -> bool:
        """Return whether the step with this key is stored with an outcome, and not taken yet."""
        stored = self._steps.get(key)
        return stored is not None and stored["state"] in FINAL

    def drop(self, key: str) -> bool:
        """Return whether the step with this key is stored, and forget it."""
        return self._pop(key) is not None

    def take(self, key: str, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return the stored step with an outcome; None if the step must be started.

        Raises `StepMismatch` if the stored step has another kind or name, whether it has an outcome or not.
        """
        stored = self._pop(key)
        if stored is not None and (stored["kind"], stored["name"]) != (kind, name):
            raise self.mismatch(key, (stored["kind"], stored["name"]), (kind, name))
        if stored is None or stored["state"] not in FINAL:
            self._is_past_the_end = True
            return None
        return stored

    def _pop(self, key: str) -> Mapping[str, Any] | None:
        stored = self._steps.pop(key, None)
        if stored is not None:
            self._outcomes -= stored["state"] in FINAL
        return stored

    def mismatch(self, key: str, stored: tuple[str, str], current: tuple[str, str]) -> StepMismatch:
        """Return the error for a step that differs from the stored one."""
        return StepMismatch(self._function, key, stored, current)
