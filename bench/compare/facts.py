"""The observations of a system: a row of the tables and of the recorded file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from bench.compare.programs import task

MODELS = ("model_1", "model_2")


@dataclass(frozen=True)
class Facts:
    """The observations of one system."""

    #: How often each call was made, by name, over both processes.
    calls: Mapping[str, int]
    #: Whether the repeated call had the idempotency key of the first one. None if nothing was repeated.
    same_key: bool | None
    #: The state that the system showed between the kill and the next call.
    interrupted: str
    #: What made the run continue.
    continued_by: str
    #: Whether a person had to do it.
    rescued: bool
    #: Seconds from the start of the second process to the next call, or until a person could do that.
    continued_s: float
    #: Whether the system asked a person about the outcome of the interrupted call.
    asked: bool
    #: The actions on the run's page at that time. None if a person had nothing to do, or if there is no page.
    interrupted_page: Sequence[str] | None
    #: The state that the system showed while it waited for the approval.
    waiting: str
    #: The actions on the run's page at that time. None if there is no page.
    waiting_page: Sequence[str] | None
    #: Whether the approval was given while no process executed the run.
    kept_without_process: bool

    @classmethod
    def read(cls, lines: Sequence[Mapping[str, Any]], **observed: Any) -> Self:
        """Return the facts of a ledger, with the other observations."""
        keys = [line["key"] for line in lines if line["what"] == task.KILLED]
        return cls(
            calls=dict(Counter(line["what"] for line in lines)),
            same_key=len(set(keys)) == 1 and bool(keys[0]) if len(keys) > 1 else None,
            **observed,
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "continued_s": round(self.continued_s, 1)}


@dataclass(frozen=True)
class Row:
    """A system in the tables."""

    title: str
    #: The day of the run, in ISO form.
    date: str
    versions: str
    #: The processes that have to run besides the program that executes the task.
    servers: str
    #: How the program of the comparison approves.
    approval: str = ""
    facts: Facts | None = None
    #: Why there are no facts.
    failure: str = ""
    #: Its libraries in the registries, by registry.
    registries: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "facts": self.facts and self.facts.as_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        facts = stored["facts"]
        return cls(**{**stored, "facts": facts and Facts(**facts)})
