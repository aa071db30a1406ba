"""Regular expressions of definitions: matched in linear time, and only if that takes little time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from agentops.base.limits.pattern_cost import PatternCost, UncountablePattern, cost_of
from agentops.base.limits.work_budget import WorkBudget, WorkExceeded

MAX_PATTERN = 200
#: Maximum parts of a pattern after expanding repetitions.
MAX_PARTS = 2_000
#: Maximum steps of one search. It cannot be interrupted, and blocks all other threads.
MAX_MATCH_STEPS = 250_000
#: Maximum steps of all searches for one decision, such as a hook's decision about a call.
MAX_DECISION_STEPS = 1_000_000
#: A compiled pattern takes up to 10 MB. Patterns with more compilation steps than this are kept in a small cache.
DEAR = 5_000


class InvalidPattern(ValueError):
    """A text is not a regular expression that the linear-time engine supports."""


class PatternTooExpensive(WorkExceeded):
    """The text is too long to search for this pattern."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression in the syntax of Rust's regex engine, which has no backtracking. Raises `InvalidPattern`."""

    text: str
    cost: PatternCost = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", _cost(self.text))
        self._validator(whole=True)

    def matches(self, subject: str, budget: WorkBudget | None = None) -> bool:
        """Return whether the whole subject matches. Raises as `occurs_in`."""
        return self._is_match(subject, budget, whole=True)

    def occurs_in(self, subject: str, budget: WorkBudget | None = None) -> bool:
        """Return whether a part of the subject matches. Raises `PatternTooExpensive`, or `WorkExceeded` of `budget`."""
        return self._is_match(subject, budget, whole=False)

    def _is_match(self, subject: str, budget: WorkBudget | None, *, whole: bool) -> bool:
        steps = self.cost.match_steps(subject)
        if steps > MAX_MATCH_STEPS:
            raise PatternTooExpensive(
                f"searches a text of {len(subject)} characters for the pattern {self.text!r}, "
                f"which takes more than {MAX_MATCH_STEPS} steps"
            )
        if budget is not None:
            budget.spend(steps)
        try:
            self._validator(whole=whole).validate_python(subject)
        except (ValidationError, UnicodeEncodeError):
            return False
        return True

    def _validator(self, *, whole: bool) -> SchemaValidator:
        compiled = _dear if self.cost.compile_steps > DEAR else _cheap
        return compiled(self.text, whole)


def decision_budget() -> WorkBudget:
    """Return the budget of one decision that searches texts for patterns."""
    return WorkBudget(MAX_DECISION_STEPS, "steps")


@lru_cache(maxsize=512)
def _cost(text: str) -> PatternCost:
    if not text or len(text) > MAX_PATTERN:
        raise InvalidPattern(f"a pattern must have 1 to {MAX_PATTERN} characters")
    try:
        cost = cost_of(text)
    except UncountablePattern as error:
        raise InvalidPattern(f"{text!r} is not a valid pattern: {error}") from None
    if cost.parts > MAX_PARTS:
        problem = f"it has {cost.parts} parts with its repetitions written out; at most {MAX_PARTS} are possible"
        raise InvalidPattern(f"{text!r} is too expensive: {problem}")
    return cost


def _compile(text: str, whole: bool) -> SchemaValidator:
    try:
        # Compiled separately first, so that an unbalanced bracket cannot end the group around it.
        alone = SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))
        if not whole:
            return alone
        return SchemaValidator(core_schema.str_schema(pattern=rf"\A(?:{text})\z", regex_engine="rust-regex"))
    except SchemaError:
        raise InvalidPattern(f"{text!r} is not a valid pattern") from None


_Compile = Callable[[str, bool], SchemaValidator]
_cheap: _Compile = lru_cache(maxsize=512)(_compile)
_dear: _Compile = lru_cache(maxsize=16)(_compile)
