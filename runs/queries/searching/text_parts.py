"""The parts of a long text in the search index: one entry for its beginning and end, and more entries for its middle.

A search reads, ranks and masks entries, so no entry may be large. Parts overlap by the maximum length of a term, so
that each term is whole in at least one part. All parts of a text belong to one run, and their keys begin with the key
of the text.
"""

from __future__ import annotations

from uuid import UUID

from runs.queries.searching.search_terms import MAX_TEXT

#: Characters of the first part: the beginning of a text, and its end, where tools report errors.
HEAD, TAIL = 6000, 2000
#: Characters of each other part, and of its overlap with the preceding part.
PART, OVERLAP = HEAD + TAIL, MAX_TEXT
#: Characters from the beginning of a text that are indexed, in addition to its end. The rest is not found.
LIMIT = 256 * 1024
#: An upper bound of the number of parts.
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
    """Return the key of a part. Part 0 has the key of its text.

    A key is at most as long as an ID, because of its column.
    """
    return f"{key.replace('-', '')}.{number}" if number else key


def text_key(key: str) -> str:
    """Return the key of the text that a part belongs to."""
    text, dot, _ = key.partition(".")
    return str(UUID(text)) if dot and len(text) == _UUID_LENGTH - 4 else text


def part_number(key: str) -> int:
    """Return the number of a part in its text. Part 0 also has the end of the text."""
    return int(key.partition(".")[2] or 0)
