"""The parts of a long text in the search index: an entry for its beginning and end, and entries for what is between.

A search reads, ranks and masks entries, so that none may be large. Parts overlap by as much as a term can be long, so
that a term is whole in one of them. All parts of a text are of one run, and their keys begin with the key of the text.
"""

from __future__ import annotations

from uuid import UUID

from runs.queries.searching.search_terms import MAX_TEXT

#: Characters of the first part: the beginning of a text, and its end, where tools report errors.
HEAD, TAIL = 6000, 2000
#: Characters of each other part, and of what it repeats of the part before it.
PART, OVERLAP = HEAD + TAIL, MAX_TEXT
#: Characters from the beginning of a text that are indexed, besides its end. The others are not found.
LIMIT = 256 * 1024
#: More parts than any text has.
MAX_PARTS = LIMIT // (PART - OVERLAP) + 2
#: Between the beginning and the end.
GAP = " … "
_UUID_LENGTH = 36


def split(line: str, end: str) -> list[str]:
    """Return the parts of a text, given as its beginning and its last TAIL characters, which may overlap."""
    parts = [f"{line[:HEAD]}{GAP}{end}"]
    begin = HEAD - OVERLAP
    while begin + OVERLAP < len(line):
        parts.append(line[begin : begin + PART])
        begin += PART - OVERLAP
    return parts


def part_key(key: str, number: int) -> str:
    """Return the key of a part: of the first, 0, that of its text. As long as an ID at most, as the column is."""
    return f"{key.replace('-', '')}.{number}" if number else key


def text_key(key: str) -> str:
    """Return the key of the text that a part belongs to."""
    text, dot, _ = key.partition(".")
    return str(UUID(text)) if dot and len(text) == _UUID_LENGTH - 4 else text


def part_number(key: str) -> int:
    """Return which part of its text an entry is: 0 is the first, which also has the end."""
    return int(key.partition(".")[2] or 0)
