"""The terms of a search: parsed from user input, found in texts, and marked in excerpts.

A term is searched literally, also within words: `%` and `_` have no special meaning. Case is ignored for all letters,
and all white space is equal. There is no stemming: "running" does not find "run".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agentops.base.refusals import InvalidQuery
from timeline.display import make_legible

#: Maximum characters and terms of a search.
MAX_TEXT, MAX_TERMS = 200, 10
#: Characters of an excerpt.
EXCERPT = 320
#: Characters of an excerpt before its first match.
BEFORE = 80
#: Maximum occurrences of a term that count for the rank.
MAX_OCCURRENCES = 8
#: A quoted term, or a word. An unpaired quotation mark is part of a word.
_TERM = re.compile(r'"([^"]*)"|(\S+)')
_SIGMAS = re.compile("[Σς]")


@dataclass(frozen=True)
class Excerpt:
    """A part of a text, and the positions of the terms in it: pairs of start and end, in order, without overlaps."""

    text: str
    marks: list[tuple[int, int]]

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of the text, each with whether it is a match."""
        at = 0
        for begin, end in self.marks:
            if at < begin:
                yield self.text[at:begin], False
            yield self.text[begin:end], True
            at = end
        if at < len(self.text):
            yield self.text[at:], False


def fold(text: str) -> str:
    """Return the text in lower case. It has the same number of characters, so that positions stay the same."""
    lowered = text.lower()
    # Convert letter by letter if a lower case depends on the neighbours (sigma), or has two characters.
    if len(lowered) != len(text) or _SIGMAS.search(text):
        return "".join(map(_fold_letter, text))
    return lowered


@lru_cache(maxsize=4096)
def _fold_letter(letter: str) -> str:
    lowered = "σ" if letter == "ς" else letter.lower()
    return lowered if len(lowered) == 1 else letter


def one_line(text: str) -> str:
    """Return the text with a single space for each white space, which is the form of indexed texts."""
    return " ".join(text.split())


def parse(text: str) -> tuple[str, ...]:
    """Return the terms of a search without duplicates: words, and texts in double quotes with their spaces.

    Empty if the text has no terms. Raises `InvalidQuery` for too many characters or terms.
    """
    if len(text) > MAX_TEXT:
        raise InvalidQuery(f"a search can have at most {MAX_TEXT} characters, not {len(text)}")
    texts = (match[1] if match[1] is not None else match[2] for match in _TERM.finditer(make_legible(text)))
    terms = tuple(dict.fromkeys(filter(None, (fold(one_line(term)) for term in texts))))
    if len(terms) > MAX_TERMS:
        raise InvalidQuery(f"a search can have at most {MAX_TERMS} terms, not {len(terms)}")
    return terms


def matches(text: str, terms: Sequence[str]) -> bool:
    """Return whether the text contains all terms."""
    folded = fold(text)
    return all(term in folded for term in terms)


def rank(text: str, terms: Sequence[str]) -> int:
    """Return a rank for a text that contains all terms: a higher value is a better match.

    Whole words count more than parts of words, several occurrences more than one, and short texts more than long ones.
    """
    folded = fold(text)
    score = sum(_rank_of(folded, term) for term in terms)
    return int(1000 * score / (1 + len(text) / 16_000))


def _rank_of(folded: str, term: str) -> float:
    """Return the rank of one term, from 1 to 5. A match that begins and ends at the border of a word counts most."""
    best, count = 0, 0
    for begin in _occurrences(folded, term):
        starts = begin == 0 or not (folded[begin - 1].isalnum() and term[0].isalnum())
        end = begin + len(term)
        ends = end == len(folded) or not (folded[end].isalnum() and term[-1].isalnum())
        best, count = max(best, 2 * starts + ends), count + 1
        if count == MAX_OCCURRENCES:
            break
    return 1 + best + count / (count + 2)


def excerpt(text: str, terms: Sequence[str]) -> Excerpt:
    """Return the part of the text around the first match, with all matches in it. Without a match, its beginning."""
    folded = fold(text)
    first = min((at for at in (folded.find(term) for term in terms) if at >= 0), default=0)
    begin = max(first - BEFORE, 0) if first + BEFORE > EXCERPT // 2 else 0
    end = min(begin + EXCERPT, len(text))
    marks = _merge(sorted((at, at + len(term)) for term in terms for at in _occurrences(folded, term, begin, end)))
    head, tail = "…" * (begin > 0), "…" * (end < len(text))
    shift = len(head) - begin
    return Excerpt(head + text[begin:end] + tail, [(a + shift, b + shift) for a, b in marks])


def _occurrences(folded: str, term: str, begin: int = 0, end: int | None = None) -> Iterator[int]:
    end = len(folded) if end is None else end
    at = folded.find(term, begin, end)
    while at >= 0:
        yield at
        at = folded.find(term, at + len(term), end)


def _merge(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join overlapping and adjacent spans. `spans` is sorted."""
    merged: list[tuple[int, int]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
