"""Regular expressions in definitions of users: their cost is computed, and expensive ones are refused.

The engine does not backtrack, but it follows all parts of an expression at once. So a search takes time proportional to
the length of the text and to the number of parts with repetitions written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from agentops.base.fair_shares import WorkBudget, WorkExceeded

#: `{3}`, `{3,}`, `{3,5}`.
_REPETITION = re.compile(r"\{(\d*)(,?)(\d*)\}")
#: What may follow the parenthesis that opens a group: `?<name>`, or `?` and flags.
_GROUP_HEAD = re.compile(r"\?(?:P?<[^>]*>|[A-Za-z-]*:?)")
#: An escape, with its braces.
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|.)", re.DOTALL)
#: Classes with hundreds of ranges in Unicode.
_UNICODE_CLASS = re.compile(r"\\[dDwWsSpP]|\[:")
#: The flag x, after the parenthesis of a group.
_VERBOSE = re.compile(r"\?[A-Za-z]*x")
#: Steps to compile a part.
COMPILE_PART = 7
#: Steps to compile a part of a pattern with Unicode classes.
COMPILE_UNICODE_PART = 400
#: Maximum steps to compile a pattern: the engine refuses a pattern whose program is larger than 10 MB.
MAX_COMPILE = 200_000
#: Parts that the engine can follow through one byte of text in one step, in the worst case.
PARTS_PER_STEP = 33


class PatternCost(NamedTuple):
    """The cost of a pattern. A step takes about a microsecond."""

    #: Number of parts with repetitions written out.
    parts: int
    compile_steps: int

    def match_steps(self, subject: str) -> int:
        """Return the approximate maximum of steps that a search in a text takes."""
        # A character has at most four bytes. Encoding the text to count them would copy it.
        size = len(subject) if subject.isascii() else 4 * len(subject)
        return 1 + self.parts * size // PARTS_PER_STEP


@dataclass
class _Group:
    """The count for a group of a pattern. It starts with 1, for the group itself."""

    parts: int = 1
    #: The parts of the last item with its repetitions, which a further repetition multiplies.
    last: int = 0

    def add(self, parts: int) -> None:
        self.parts += parts
        self.last = parts

    def loop(self) -> None:
        """Add the part that `*`, `+` or `?` needs to repeat or skip the last item."""
        self.parts += 1
        self.last += 1

    def repeat(self, times: int) -> None:
        self.parts += self.last * (times - 1)
        self.last *= times


def cost_of(text: str) -> PatternCost:
    """Return the cost of a pattern in Rust's syntax, too high rather than too low. Raises `ValueError`."""
    parts = _count_parts(text)
    steps_per_part = COMPILE_UNICODE_PART if _UNICODE_CLASS.search(text) else COMPILE_PART
    return PatternCost(parts, min(parts * steps_per_part, MAX_COMPILE))


def _count_parts(text: str) -> int:
    """Return the number of parts of a pattern with repetitions written out.

    Each character, class, escape, operator and group is a part. Raises `ValueError` if they cannot be counted.
    """
    groups, at = [_Group()], 0
    while at < len(text):
        character = text[at]
        if character == "(":
            head = _GROUP_HEAD.match(text, at + 1)
            if head and _VERBOSE.match(head[0]):
                # The flag changes the meaning of spaces, and starts comments.
                raise ValueError("a pattern must not have the flag x")
            groups.append(_Group())
            at = head.end() if head else at + 1
        elif character == ")":
            if len(groups) == 1:
                raise ValueError("a group is closed that was not opened")
            inner = groups.pop()
            groups[-1].add(inner.parts)
            at += 1
        elif character == "[":
            at = _end_of_class(text, at)
            groups[-1].add(1)
        elif character == "{" and (repetition := _REPETITION.match(text, at)):
            least, most = int(repetition[1] or 1), int(repetition[3] or 0)
            # `{3,}` and `{3,5}` need one more part, to loop or to skip.
            groups[-1].repeat(max(least, most, 1) + bool(repetition[2]))
            at = repetition.end()
        elif character in "*+?":
            groups[-1].loop()
            at += 1
        else:
            escape = _ESCAPE.match(text, at) if character == "\\" else None
            groups[-1].add(1)
            at = escape.end() if escape else at + 1
    if len(groups) > 1:
        raise ValueError("a group is not closed")
    return groups[0].parts


def _end_of_class(text: str, at: int) -> int:
    """Return the end of the character class `[…]` that begins at `at`. Classes can contain classes."""
    depth = 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character == "[":
            depth += 1
            # Directly after `[` or `[^`, a closing bracket is a literal character.
            at += text[at + 1 : at + 2] == "^"
            at += text[at + 1 : at + 2] == "]"
        elif character == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise ValueError("a class is not closed")


#: Maximum characters of a pattern.
MAX_PATTERN = 200
#: Maximum parts of a pattern with repetitions written out.
MAX_PARTS = 2_000
#: Maximum steps of one search, which cannot be interrupted, and blocks all other threads.
MAX_MATCH_STEPS = 250_000
#: Maximum steps of all searches for one decision, such as a hook's decision about a call.
MAX_DECISION_STEPS = 1_000_000
#: Compilation steps above which a compiled pattern is kept in the small cache. It may take up to 10 MB.
LARGE_STEPS = 5_000


class InvalidPattern(ValueError):
    """A text is not a regular expression that the engine supports, or is too expensive."""


class PatternTooExpensive(WorkExceeded):
    """The text is too long to be searched for the pattern."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression in the syntax of Rust's regex engine, which has no backtracking. Raises `InvalidPattern`."""

    text: str
    cost: PatternCost = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", _cost(self.text))
        self._validator(whole=True)

    def matches(self, subject: str, budget: WorkBudget | None = None) -> bool:
        """Return whether the whole subject matches. Raises the same as `occurs_in`."""
        return self._is_match(subject, budget, whole=True)

    def occurs_in(self, subject: str, budget: WorkBudget | None = None) -> bool:
        """Return whether a part of the subject matches. The steps count towards `budget`.

        Raises `PatternTooExpensive` for a text that is too long, and `WorkExceeded` if the budget is exceeded.
        """
        return self._is_match(subject, budget, whole=False)

    def _is_match(self, subject: str, budget: WorkBudget | None, *, whole: bool) -> bool:
        """Return whether the subject, or a part of it, matches. Raises the same as `occurs_in`."""
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
        compiled = _compile_large if self.cost.compile_steps > LARGE_STEPS else _compile_small
        return compiled(self.text, whole)


def decision_budget() -> WorkBudget:
    """Return the budget of one decision that searches texts for patterns."""
    return WorkBudget(MAX_DECISION_STEPS, "steps")


@lru_cache(maxsize=512)
def _cost(text: str) -> PatternCost:
    """Return the cost of a pattern. Raises `InvalidPattern` if it is too long, malformed or too expensive."""
    if not text or len(text) > MAX_PATTERN:
        raise InvalidPattern(f"a pattern must have 1 to {MAX_PATTERN} characters")
    try:
        cost = cost_of(text)
    except ValueError as error:
        raise InvalidPattern(f"{text!r} is not a valid pattern: {error}") from None
    if cost.parts > MAX_PARTS:
        problem = f"it has {cost.parts} parts with its repetitions written out; at most {MAX_PARTS} are possible"
        raise InvalidPattern(f"{text!r} is too expensive: {problem}")
    return cost


def _compile(text: str, whole: bool) -> SchemaValidator:
    """Return a validator for texts that contain the pattern or, if `whole`, match it. Raises `InvalidPattern`."""
    try:
        # Compiled without the group first: an unbalanced parenthesis would close that group.
        alone = SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))
        if not whole:
            return alone
        return SchemaValidator(core_schema.str_schema(pattern=rf"\A(?:{text})\z", regex_engine="rust-regex"))
    except SchemaError:
        raise InvalidPattern(f"{text!r} is not a valid pattern") from None


_Compile = Callable[[str, bool], SchemaValidator]
_compile_small: _Compile = lru_cache(maxsize=512)(_compile)
_compile_large: _Compile = lru_cache(maxsize=16)(_compile)
