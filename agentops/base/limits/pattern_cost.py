"""The cost of a regular expression: its number of parts after expanding repetitions.

The engine of `agentops.base.limits.patterns` never backtracks, but it follows all parts at once: matching takes time
proportional to the length of the text and to the number of parts, and `(a{99}){99}` has 9,801 of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

#: `{3}`, `{3,}`, `{3,5}`.
_REPETITION = re.compile(r"\{(\d*)(,?)(\d*)\}")
#: The text after the bracket of a group: its name, or flags.
_GROUP_HEAD = re.compile(r"\?(?:P?<[^>]*>|[A-Za-z-]*:?)")
#: An escape, including its braces.
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|.)", re.DOTALL)
#: Escapes of classes with hundreds of ranges in Unicode.
_UNICODE_CLASS = re.compile(r"\\[dDwWsSpP]|\[:")
_VERBOSE = re.compile(r"\?[A-Za-z]*x")
#: Steps to compile a part, and a part that may be a Unicode class; and the maximum for a pattern. The engine refuses a
#: pattern whose program is larger than 10 MB.
COMPILE_PART, COMPILE_UNICODE_PART, MAX_COMPILE = 7, 400, 200_000
#: Number of parts that the engine follows through one byte of text in a step, if it follows all of them.
PARTS_PER_STEP = 33


class PatternCost(NamedTuple):
    """The cost of one pattern, in steps of about a microsecond."""

    #: Parts after expanding repetitions.
    parts: int
    compile_steps: int

    def match_steps(self, subject: str) -> int:
        """Return the approximate maximum of steps that a search in a text takes."""
        # At most four bytes per character. `len` is free; encoding would copy the text.
        size = len(subject) if subject.isascii() else 4 * len(subject)
        return 1 + self.parts * size // PARTS_PER_STEP


class UncountablePattern(ValueError):
    """The parts of the pattern cannot be counted. The message gives the reason."""


@dataclass
class _Group:
    parts: int = 1
    #: The parts of the last item, which a repetition multiplies.
    last: int = 0

    def add(self, parts: int) -> None:
        self.parts += parts
        self.last = parts

    def repeat(self, times: int) -> None:
        self.parts += self.last * (times - 1)
        self.last *= times


def cost_of(text: str) -> PatternCost:
    """Return the cost of a pattern in Rust's syntax, rounded up if unsure. Raises `UncountablePattern`."""
    parts = _parts(text)
    part = COMPILE_UNICODE_PART if _UNICODE_CLASS.search(text) else COMPILE_PART
    return PatternCost(parts, min(parts * part, MAX_COMPILE))


def _parts(text: str) -> int:
    groups, at = [_Group()], 0
    while at < len(text):
        character = text[at]
        if character == "(":
            head = _GROUP_HEAD.match(text, at + 1)
            if head and _VERBOSE.match(head[0]):
                # The flag changes the meaning of spaces, following brackets and comments.
                raise UncountablePattern("a pattern must not have the flag x")
            groups.append(_Group())
            at = head.end() if head else at + 1
        elif character == ")":
            if len(groups) == 1:
                raise UncountablePattern("a group is closed that was not opened")
            inner = groups.pop()
            groups[-1].add(inner.parts)
            at += 1
        elif character == "[":
            at = _end_of_class(text, at)
            groups[-1].add(1)
        elif character == "{" and (repetition := _REPETITION.match(text, at)):
            groups[-1].repeat(max(int(repetition[1] or 1), int(repetition[3] or 0), 1) + bool(repetition[2]))
            at = repetition.end()
        else:
            escape = _ESCAPE.match(text, at) if character == "\\" else None
            groups[-1].add(1)
            at = escape.end() if escape else at + 1
    if len(groups) > 1:
        raise UncountablePattern("a group is not closed")
    return groups[0].parts


def _end_of_class(text: str, at: int) -> int:
    """Return the end of the class that begins at `at`: classes can contain classes."""
    depth = 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character == "[":
            depth += 1
            # A bracket in the first position is a literal character.
            at += text[at + 1 : at + 2] == "^"
            at += text[at + 1 : at + 2] == "]"
        elif character == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise UncountablePattern("a class is not closed")
