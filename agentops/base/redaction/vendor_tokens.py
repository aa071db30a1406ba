"""Detection of vendors' tokens by their prefixes, from the table in agentops/base/redaction/vendor_formats."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from ahocorasick_rs import AhoCorasick, Implementation

from agentops.base.redaction.secret_names import DIGIT, LETTER, SecretSpan
from agentops.base.redaction.token_grammar import VendorFormat
from agentops.base.redaction.vendor_formats import FORMATS

_DIGIT = "[0-9A-Fa-f]"
#: A token does not start after a letter or digit, except at the end of an escape such as \\n, %3D or \\u0022.
START = re.compile(
    rf"(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=%{_DIGIT}{_DIGIT})|(?<=\\u{_DIGIT}{_DIGIT}{_DIGIT}{_DIGIT})", re.ASCII
)
# Words and numbers with separators between them: some-name2_2024, someName.
_NAMES = re.compile(r"(?:(?:[A-Za-z]++[0-9]{0,2}+|[0-9]++)(?:[-_.]++|\Z))+\Z")
_UPPER, _LOWER = re.compile("[A-Z]"), re.compile("[a-z]")
#: The number of characters of a body that are checked for randomness.
_LOOK = 64


# Words and names may consist of the characters of these alphabets alone.
_MIXED = frozenset({"word", "alnum"})


class _Rule(NamedTuple):
    kind: str
    body: re.Pattern[str]
    least: int
    #: Every match counts, because no word has this form.
    is_sure: bool
    #: Every match that starts with a digit counts.
    is_numbered: bool

    def accepts(self, body: str) -> bool:
        """Return whether a match of `body` is a token."""
        return self.is_sure or (self.is_numbered and body[0].isdigit()) or is_random(body, self.least)


@cache
def _rules(prefix: str) -> tuple[_Rule, ...]:
    """Return the rules of a prefix. Compiled on demand: it takes a while, and most are never needed."""
    return tuple(map(_rule, _FORMATS[prefix]))


@cache
def head_of(prefix: str) -> re.Pattern[str]:
    """Return an expression of bounded length for the text after a prefix."""
    return re.compile("|".join(dict.fromkeys(form.head() for form in _FORMATS[prefix])), re.ASCII)


def _rule(form: VendorFormat) -> _Rule:
    alphabets = [part.alphabet for part in form.parts()]
    is_sure = form.is_exact and _MIXED.isdisjoint(alphabets)
    return _Rule(
        form.kind, re.compile(form.pattern(), re.ASCII), min(form.least, _LOOK), is_sure, alphabets[0] == "digit"
    )


_FORMATS: dict[str, list[VendorFormat]] = {}
for _format in FORMATS:
    _FORMATS.setdefault(_format.prefix, []).append(_format)
PREFIXES = tuple(_FORMATS)
#: Prefixes of tokens with other characters than letters, digits, hyphens, underscores and full stops.
WIDE_PREFIXES = tuple(
    {form.prefix for form in FORMATS if re.search(r"base64| [=:] ", form.body) or re.search(r"[^\w.-]", form.prefix)}
)


# Number of characters of a prefix that distinguish it from the ends of words.
_TAIL = 7


def _gate(sign: str, more: str = "", other: str = "") -> re.Pattern[str]:
    """Return a pattern for the end of a prefix, followed by a longer word than most identifiers in code.

    If the body may start with other characters, the end of the prefix is enough. `more` are such prefix ends of other
    shapes, and `other` are alternatives after the sign.
    """
    tails: dict[int, set[str]] = {}
    for form in FORMATS:
        if form.prefix[-1] == sign and (sign == "." or not _begins_with_word(form)):
            tail = form.prefix[-_TAIL:]
            tails.setdefault(len(tail), set()).add(re.escape(tail))
    ends = "|".join(f"(?<={'|'.join(sorted(tails[length]))})" for length in sorted(tails))
    plain = "(?=[A-Za-z0-9]{16})|" if sign != "." else ""
    return re.compile(rf"{re.escape(sign)}(?:{plain}{other}(?=[A-Za-z0-9_+/%.\\-]{{12}})(?:{ends}{more}))")


def _begins_with_word(form: VendorFormat) -> bool:
    first = next(form.parts())
    return first.alphabet not in ("", "word", "base64") and first.least >= 16


#: Each text with a token matches one of these patterns, and few other texts do. Each begins with one character, which
#: makes its search fast. Four prefixes have no rare character: see `may_be_in`.
GATES = (
    _gate("_", "|(?<=aok_)"),
    _gate("-", "|(?<=sk-)", "BEGIN |"),
    _gate(".", r"|(?<=pat[A-Za-z0-9]{14}\.)|(?<=atlasv1\.)"),
    re.compile(
        r"A(?:KIA|SIA|BIA|CCA|Iza|A(?<=:AA)|A(?<=EAA)|KCp|I(?<=LTAI)|TATT3|TCTT3|TBB|QVN|BSK|K(?<=EZAK)|(?<=BSA)|EP861)"
    ),
    re.compile(r"S(?:K[0-9a-fA-F]{16}|:(?<=AstraCS:))"),
    re.compile(r"J(?<=eyJ)"),
    re.compile(r"~(?:(?<=Q~)|(?<=sha256~))"),
    re.compile(r"1(?:(?:/|\\/|%2F){2}0|348941)"),
)
#: Markers of the other token shapes: see `secret_shapes.SHAPES`.
SHAPE_MARKS = ("sk-", "aok_", ":AA", "eyJ", ".atlasv1.", "Q~", "-----BEGIN ")
_SEARCHES = tuple(gate.search for gate in GATES)


def may_be_in(text: str) -> bool:
    """Return whether the text may contain a token. Fast, because most texts contain none."""
    for search in _SEARCHES:
        if search(text):
            return True
    return "dapi" in text or "oy2" in text or "cio" in text or "cmVmdGtu" in text


@cache
def _search() -> AhoCorasick:
    return AhoCorasick((*PREFIXES, *SHAPE_MARKS), implementation=Implementation.DFA)


def find(text: str) -> tuple[dict[int, SecretSpan], set[str]]:
    """Return the tokens in `text` by their positions, and which of `SHAPE_MARKS` it contains.

    If several formats match at one position, the longest prefix is used, with the longest end.
    """
    tokens: dict[int, SecretSpan] = {}
    marks = set[str]()
    for index, begin, body in _search().find_matches_as_indexes(text, overlapping=True):
        if index >= len(PREFIXES):
            marks.add(SHAPE_MARKS[index - len(PREFIXES)])
        elif START.match(text, begin):
            for rule in _rules(PREFIXES[index]):
                match = rule.body.match(text, body)
                if match and rule.accepts(match[0]):
                    end = max(match.end(), tokens[begin].end if begin in tokens else 0)
                    tokens[begin] = SecretSpan(begin, end, begin, rule.kind)
    return tokens, marks


def is_random(body: str, least: int) -> bool:
    """Return whether a text of at least `least` characters does not consist of words.

    It must contain letters and digits in another pattern than identifiers do, or be complete and of mixed case in other
    proportions than identifiers.
    """
    body = body[:_LOOK]
    if DIGIT.search(body) and not _NAMES.match(body):
        return LETTER.search(body) is not None
    upper, lower = len(_UPPER.findall(body)), len(_LOWER.findall(body))
    return len(body) >= min(least, 30) and min(upper, lower) * 5 >= upper + lower > 0
