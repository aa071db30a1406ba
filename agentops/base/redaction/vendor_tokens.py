"""Detection of vendors' tokens, and of truncated ones, by their prefixes, which are in vendor_formats.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from string import ascii_letters, digits
from typing import NamedTuple

from ahocorasick_rs import AhoCorasick, Implementation

from agentops.base.redaction.secret_names import DIGIT, LETTER, SecretSpan, after_escape
from agentops.base.redaction.token_grammar import VendorFormat
from agentops.base.redaction.vendor_formats import FORMATS

#: Matches where a token can start: not after a letter or digit, except at the end of an escape.
START = re.compile(rf"(?<![A-Za-z0-9_-])|{after_escape('')}", re.ASCII)
#: Words and numbers with separators between them, such as some-name2_2024 and someName.
_NAMES = re.compile(r"(?:(?:[A-Za-z]++[0-9]{0,2}+|[0-9]++)(?:[-_.]++|\Z))+\Z")
_UPPER, _LOWER = re.compile("[A-Z]"), re.compile("[a-z]")
#: The number of characters of a body that are checked for randomness.
_LOOK = 64
#: Alphabets with which a body can be an ordinary word.
_MIXED = frozenset({"word", "alnum"})


class _Rule(NamedTuple):
    """How the text after a prefix is recognised as the body of a token."""

    kind: str
    body: re.Pattern[str]
    #: The minimum length of a complete body.
    least: int
    #: Whether every match is a token, because no word has this form.
    is_sure: bool
    #: Whether every match that starts with a digit is a token.
    is_numbered: bool

    def accepts(self, body: str) -> bool:
        """Return whether a match of the pattern `body` is a token."""
        return self.is_sure or (self.is_numbered and body[0].isdigit()) or is_random(body, self.least)


@cache
def _rules(prefix: str) -> tuple[_Rule, ...]:
    """Return the rules for a prefix. Compiled when needed, because it takes a while, and most are never needed."""
    rules = []
    for form in _FORMATS[prefix]:
        alphabets = [part.alphabet for part in form.parts()]
        pattern, least = re.compile(form.pattern(), re.ASCII), min(form.least, _LOOK)
        is_sure = form.is_exact and _MIXED.isdisjoint(alphabets)
        rules.append(_Rule(form.kind, pattern, least, is_sure, is_numbered=alphabets[0] == "digit"))
    return tuple(rules)


@cache
def head_of(prefix: str) -> re.Pattern[str]:
    """Return an expression of bounded length for the text after a prefix."""
    return re.compile("|".join(dict.fromkeys(form.head() for form in _FORMATS[prefix])), re.ASCII)


_FORMATS: dict[str, list[VendorFormat]] = {}
for _format in FORMATS:
    _FORMATS.setdefault(_format.prefix, []).append(_format)
PREFIXES = tuple(_FORMATS)
#: Prefixes of tokens with other characters than letters, digits, hyphens, underscores and full stops.
WIDE_PREFIXES = tuple(
    {form.prefix for form in FORMATS if re.search(r"base64| [=:] ", form.body) or re.search(r"[^\w.-]", form.prefix)}
)


#: The number of characters at the end of a prefix by which it is distinguished from the ends of words.
_TAIL = 7


def _gate(character: str, more: str = "", other: str = "") -> re.Pattern[str]:
    """Return a pattern for prefixes that end with a character.

    It matches a character with 16 letters and digits after it, which are longer than most words of code. If a body may
    start differently, it matches the end of the prefix. `more`: ends of prefixes of other shapes. `other`: further
    alternatives for the text after the character.
    """
    tails: dict[int, set[str]] = {}
    for form in FORMATS:
        if form.prefix[-1] == character and (character == "." or not _begins_with_word(form)):
            tail = form.prefix[-_TAIL:]
            tails.setdefault(len(tail), set()).add(re.escape(tail))
    ends = "|".join(f"(?<={'|'.join(sorted(tails[length]))})" for length in sorted(tails))
    plain = "(?=[A-Za-z0-9]{16})|" if character != "." else ""
    return re.compile(rf"{re.escape(character)}(?:{plain}{other}(?=[A-Za-z0-9_+/%.\\-]{{12}})(?:{ends}{more}))")


def _begins_with_word(form: VendorFormat) -> bool:
    first = next(form.parts())
    return first.alphabet not in ("", "word", "base64") and first.least >= 16


#: Each text with a token matches one of these patterns, except for the four prefixes in `may_be_in`, which have no rare
#: character. Few other texts do. Each pattern begins with one character, which makes its search fast.
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
SHAPE_MARKERS = ("sk-", "aok_", ":AA", "eyJ", ".atlasv1.", "Q~", "-----BEGIN ")
_SEARCHES = tuple(gate.search for gate in GATES)


def may_be_in(text: str) -> bool:
    """Return whether the text may contain a token. Fast, because most texts contain none."""
    for search in _SEARCHES:
        if search(text):
            return True
    return "dapi" in text or "oy2" in text or "cio" in text or "cmVmdGtu" in text


@cache
def _search() -> AhoCorasick:
    return AhoCorasick((*PREFIXES, *SHAPE_MARKERS), implementation=Implementation.DFA)


def find(text: str) -> tuple[dict[int, SecretSpan], set[str]]:
    """Return the tokens in `text` by their positions, and which of `SHAPE_MARKERS` it contains.

    If several formats match at one position, the token has the kind of the longest prefix and the longest end.
    """
    tokens: dict[int, SecretSpan] = {}
    markers = set[str]()
    for index, begin, body in _search().find_matches_as_indexes(text, overlapping=True):
        if index >= len(PREFIXES):
            markers.add(SHAPE_MARKERS[index - len(PREFIXES)])
        elif START.match(text, begin):
            for rule in _rules(PREFIXES[index]):
                match = rule.body.match(text, body)
                if match and rule.accepts(match[0]):
                    end = max(match.end(), tokens[begin].end if begin in tokens else 0)
                    tokens[begin] = SecretSpan(begin, end, begin, rule.kind)
    return tokens, markers


def is_random(body: str, least: int) -> bool:
    """Return whether a body is random, and does not consist of words.

    A random body contains letters and digits in another pattern than identifiers do. Otherwise it must be complete
    (`least` characters, or 30), and mix capital and small letters in other proportions than identifiers.
    """
    body = body[:_LOOK]
    if DIGIT.search(body) and not _NAMES.match(body):
        return LETTER.search(body) is not None
    upper, lower = len(_UPPER.findall(body)), len(_LOWER.findall(body))
    return len(body) >= min(least, 30) and min(upper, lower) * 5 >= upper + lower > 0


#: The prefixes of the other shapes.
_OTHERS = ("sk-", "aok_", "eyJ")
_WORD = ascii_letters + digits + "_-"
#: The characters of most tokens.
_NARROW = _WORD + "."
#: The characters of tokens with `WIDE_PREFIXES`.
_WIDE = _WORD + r".+/=%\:~"
_SEPARATORS = frozenset(_WIDE) - frozenset(_NARROW)
_TERRAFORM = ".atlasv1."


def branches(texts: Iterable[str]) -> str:
    """Return a pattern for any of the texts. They are grouped by their first characters, which makes the search faster.

    Where one text begins with another, the longer one comes first.
    """
    tails: dict[str, list[str]] = {}
    for text in texts:
        tails.setdefault(text[0], []).append(text[1:])
    return "|".join(
        f"{re.escape(first)}(?:{'|'.join(map(re.escape, sorted(rest, reverse=True)))})" for first, rest in tails.items()
    )


_PREFIX = re.compile(rf"(?:{START.pattern})(?:{branches([*PREFIXES, *_OTHERS])})", re.ASCII)
_WIDE_PREFIX = re.compile("|".join(map(re.escape, WIDE_PREFIXES)))
_TELEGRAM = re.compile(r"(?<=[0-9]:)A(?:A[A-Za-z0-9_-]*+)?\Z", re.ASCII)
_AZURE = re.compile(r"(?<=[0-9])Q(?:~[A-Za-z0-9_.~-]*+)?\Z", re.ASCII)
_BEFORE_TERRAFORM = re.compile(r"(?<=[A-Za-z0-9]{14})", re.ASCII)
_HEADS = frozenset(prefix[:length] for prefix in (*PREFIXES, *_OTHERS) for length in range(1, len(prefix)))
#: Last character → lengths of incomplete prefixes that end in it, longest first.
_LENGTHS = {
    end: sorted({len(head) for head in _HEADS if head[-1] == end}, reverse=True) for end in map(chr, range(128))
}


def unfinished(text: str) -> int:
    """Return the position of a token, or of an incomplete prefix, at the end of the text; else the text's length."""
    first = size = len(text)
    run = len(text.rstrip(_NARROW))
    # All characters from `run` on can belong to a token.
    if run < size and (match := _PREFIX.search(text, run)):
        first = match.start()
    if text[run - 1 : run] in _SEPARATORS:
        first = min(first, _wide(text), size if text[run - 1] != ":" else _start(_TELEGRAM.match(text, run), size))
    if "." in text[run:]:
        first = min(first, _terraform(text, run))
    if "~" in text or text.endswith("Q"):
        first = min(first, _start(_AZURE.search(text, len(text.rstrip(_NARROW + "~"))), size))
    for length in _LENGTHS.get(text[-1:], ()):
        if length <= size and text[size - length :] in _HEADS and START.match(text, size - length):
            return min(first, size - length)
    return first


def _start(match: re.Match[str] | None, otherwise: int) -> int:
    return match.start() if match else otherwise


def _wide(text: str) -> int:
    """Return the position of a token with one of `WIDE_PREFIXES` at the end of the text; else the text's length."""
    run = len(text.rstrip(_WIDE))
    starts = (match.start() for match in _WIDE_PREFIX.finditer(text, run))
    return next((start for start in starts if START.match(text, start)), len(text))


def _terraform(text: str, run: int) -> int:
    """Return the position of the second-last or last full stop if `.atlasv1.` can begin there; else the length."""
    last = text.rfind(".")
    begin = last - len(_TERRAFORM) + 1 if text.endswith(_TERRAFORM, run, last + 1) else last
    is_open = begin < last or _TERRAFORM.startswith(text[last:])
    return begin if is_open and _BEFORE_TERRAFORM.match(text, begin) else len(text)
