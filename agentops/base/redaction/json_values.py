"""Redaction of many JSON values at once, and of values in forms, where an unchanged placeholder represents its secret.

Few values contain a secret, but searching each string for each kind of secret takes longer than storing it. Here all
values are searched at once, as one JSON text, for markers: each secret has one, such as the prefix of a token or a name
before the value. Only values with a marker are then redacted one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

from ahocorasick_rs import AhoCorasick, Implementation
from pydantic_core import PydanticSerializationError, from_json, to_json

from agentops.base.redaction import secret_names, secret_places, secret_shapes, secret_urls
from agentops.base.redaction.redact import BUILT_IN, JSON, NOTHING, PLACEHOLDER, Redactor, site_secrets
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.secret_names import each
from agentops.base.redaction.secret_places import AFTER_HEADER, FIRSTS, PROGRAMS
from agentops.base.redaction.vendor_tokens import PREFIXES, head_of

#: Markers of other replacements: NUL, and existing placeholders, which another secret may follow.
_OTHER_MARKERS = ("\\u0000", "[REDACTED:")


def clean_all(values: Sequence[JSON], redactor: Redactor) -> list[tuple[JSON, frozenset[str]]]:
    """Return `redactor.clean(value)` for each JSON value."""
    try:
        suspects = suspects_among([to_json(value).decode() for value in values], redactor)
    except PydanticSerializationError:  # an unpaired surrogate, or too deep
        suspects = range(len(values))
    return [redactor.clean(value) if index in suspects else (value, NOTHING) for index, value in enumerate(values)]


def clean_texts(texts: Sequence[str], redactor: Redactor) -> list[tuple[str, frozenset[str]]]:
    """Do the same as `clean_all` for values as JSON texts without spaces, and return them as such texts."""
    suspects = suspects_among(texts, redactor)
    return [_clean_text(text, redactor) if index in suspects else (text, NOTHING) for index, text in enumerate(texts)]


def _clean_text(text: str, redactor: Redactor) -> tuple[str, frozenset[str]]:
    value, changes = redactor.clean(from_json(text))
    return to_json(value).decode() if changes else text, changes


def is_suspect(text: str, redactor: Redactor) -> bool:
    """Return whether a JSON text without spaces may contain something to replace, besides unpaired surrogates."""
    return redactor is not BUILT_IN or next(_suspect_positions(text), None) is not None


def suspects_among(texts: Sequence[str], redactor: Redactor) -> set[int] | range:
    """Return the indexes of the JSON texts that may contain something to replace."""
    if redactor is not BUILT_IN:
        return range(len(texts))  # the rules of a project have other markers
    starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
    return {bisect_right(starts, at) - 1 for at in _suspect_positions("\n".join(texts))}


def _suspect_positions(text: str) -> Iterator[int]:
    """Yield at least one position in each part of a JSON text that may have to be replaced."""
    if secrets := site_secrets():
        yield from (span.begin for span in secrets.find(text))
    # Markers are ASCII, and JSON does not escape them, but at most the text after them.
    if not text.isascii():
        text = text.encode("ascii", "replace").decode("ascii")
    for marker in _OTHER_MARKERS:
        yield from each(text, marker)
    yield from marker_positions(text, text.lower())


# In JSON, most kinds of white space begin with a backslash.
_AFTER_SCHEME = frozenset(" :+%\\")
_HEADERS = (
    *(("bearer", _AFTER_SCHEME), ("basic", _AFTER_SCHEME)),
    *(("authorization", AFTER_HEADER), ("cookie", AFTER_HEADER)),
)
_URL = "://"
#: Prefixes of tokens in JSON → the prefixes.
_PREFIXES = {prefix.replace("\\", "\\\\"): prefix for prefix in PREFIXES}
_MARKERS = (*secret_shapes.MARKERS, *_PREFIXES, _URL, *secret_urls.MARKERS, *secret_places.MARKERS, *PROGRAMS)
_SEARCH = AhoCorasick(_MARKERS, implementation=Implementation.DFA)


def marker_positions(text: str, lower: str) -> Iterator[int]:
    """Yield positions of markers of secrets in a JSON text in ASCII, with "?" for other characters.

    For each secret that `secret_shapes.find` finds in a string of the JSON value, at least one position is in that
    string, or in the name of its member. A detector whose markers are missing here does not work for batches. `lower`
    is the text in lower case.
    """
    markers = set[str]()
    for index, begin, end in _SEARCH.find_matches_as_indexes(text, overlapping=True):
        marker = _MARKERS[index]
        markers.add(marker)
        if marker in secret_shapes.MARKERS:
            may_follow = secret_shapes.MARKERS[marker].match(text, end) is not None
        elif marker in _PREFIXES:
            may_follow = head_of(_PREFIXES[marker]).match(text, end) is not None
        else:
            may_follow = secret_urls.may_follow(text, marker, end) or secret_places.may_follow(text, marker, end)
        if may_follow:
            yield begin
    if _URL in markers and "@" in text:
        yield from each(text, _URL)
    if not markers.isdisjoint(PROGRAMS):
        yield from _options(text)
    if "password" in text:
        yield from each(text, "login")
    yield from _headers(lower)
    yield from secret_names.name_positions(lower)
    # In SQL. The other case-insensitive marker of statements, "password", is a name too.
    yield from each(lower, "identified")


def _options(text: str) -> Iterator[int]:
    """Yield the positions of command-line options that may take a secret."""
    for at in each(text, " -"):
        if text[at + 2 : at + 3] in FIRSTS:
            yield at


def _headers(lower: str) -> Iterator[int]:
    """Yield the positions of header names, and of schemes in headers."""
    for word, after in _HEADERS:
        for at in each(lower, word):
            if lower[at + len(word) : at + len(word) + 1] in after:
                yield at


class MaskedSecrets:
    """The secrets in stored values, by the placeholders that replace them on pages."""

    def __init__(self, *values: object) -> None:
        self._secrets: dict[str, str] = {}
        for value in values:
            self._learn(value, masked(value))

    def restore(self, value: Any) -> Any:
        """Return a copy of a value with its placeholders replaced by their secrets. Unknown placeholders stay."""
        if isinstance(value, str):
            return (
                PLACEHOLDER.sub(lambda match: self._secrets.get(match[0], match[0]), value) if self._secrets else value
            )
        if isinstance(value, Mapping):
            return {self.restore(key): self.restore(member) for key, member in value.items()}
        return [self.restore(item) for item in value] if isinstance(value, list) else value

    def _learn(self, value: object, masked_value: object) -> None:
        """Store the secrets of a value by the placeholders in its masked form."""
        if isinstance(value, dict) and isinstance(masked_value, dict):
            for pair, masked_pair in zip(value.items(), masked_value.items(), strict=True):
                self._learn([*pair], [*masked_pair])
        elif isinstance(value, list) and isinstance(masked_value, list):
            for item, masked_item in zip(value, masked_value, strict=True):
                self._learn(item, masked_item)
        elif isinstance(value, str) and isinstance(masked_value, str) and value != masked_value:
            self._learn_text(value, masked_value)

    def _learn_text(self, text: str, masked_text: str) -> None:
        """Store the secrets in a text by their placeholders."""
        if PLACEHOLDER.fullmatch(masked_text):
            # The text may be a secret only because of the name of its member, which the search below does not know.
            self._secrets[masked_text] = text
            return
        redactor = REDACTOR.fixed()
        for span in redactor.spans(text):
            self._secrets[redactor.placeholder_of(text, span)] = text[span.begin : span.end]


def masked(value: Any) -> Any:
    """Return a JSON value with its secrets replaced by placeholders."""
    return REDACTOR.clean(cast("JSON", value))[0]
