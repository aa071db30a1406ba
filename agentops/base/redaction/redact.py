"""Replaces secrets, NUL and unpaired surrogates in texts and JSON values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from agentops.base.redaction import project_scope, secret_shapes
from agentops.base.redaction.registered_secrets import SecretSet, TokenFormat, TokenFormats, blank, exclude, join
from agentops.base.redaction.secret_names import SecretSpan, kind_of_member, lower_case

if TYPE_CHECKING:  # importing pydantic would delay every command by 0.1 s
    from pydantic import JsonValue

JSON: TypeAlias = "JsonValue"

#: The kinds of replacements.
NUL = "nul"
SURROGATE = "surrogate"
REDACTED = "redacted"
NOTHING: frozenset[str] = frozenset()

#: Maximum searches of a text: a secret that was replaced by a placeholder can reveal another one next to it.
ROUNDS = 4
#: The text that replaces a secret.
PLACEHOLDER = re.compile(r"\[REDACTED:[a-z0-9_]{1,32}:[0-9a-f]{8}\]")
_PLACEHOLDER_HEAD = re.compile(r"\[REDACTED:[a-z0-9_]{0,32}:?[0-9a-f]{0,8}\Z")
_PLACEHOLDER_LENGTH = 52
_SURROGATES = re.compile("[\ud800-\udfff]")
# Keys of JSON objects that are not searched: no known secret is that short and in lower case.
_PLAIN_KEY = re.compile(r"[a-z_]{1,16}", re.ASCII)


def placeholder(kind: str, original: str) -> str:
    """Return the text that replaces a secret. Equal secrets have equal placeholders."""
    digest = hashlib.sha256(original.encode(errors="surrogatepass")).hexdigest()
    return f"[REDACTED:{kind}:{digest[:8]}]"


def is_masked_form(masked: str, original: str) -> bool:
    """Return whether a text with placeholders can be the masked form of the original text."""
    first, *between = PLACEHOLDER.split(masked)
    if not between or not original.startswith(first):
        return False
    *between, last = between
    at = len(first)
    for piece in between:  # taking the first occurrence of each leaves most text for the others
        at = original.find(piece, at + 1) + len(piece)
        if at < len(piece):
            return False
    return original.endswith(last) and len(original) - len(last) > at


class Redactor:
    """Replaces registered secrets, those of the site (`use_site_secrets`), and texts that look like a secret.

    `secrets`: values, or a mapping of values to kinds. `tokens`: formats besides the built-in ones. `off`: built-in
    kinds that are not replaced. If `shapes` is False, only NUL and unpaired surrogates are replaced.
    `masks_model_input`: whether texts are redacted before they are stored and sent to a model. Immutable and
    thread-safe.
    """

    def __init__(
        self,
        secrets: Iterable[str] | Mapping[str, str] = (),
        *,
        shapes: bool = True,
        tokens: Iterable[TokenFormat] = (),
        off: Collection[str] = (),
        masks_model_input: bool = True,
    ) -> None:
        self.shapes = shapes
        self._registered = SecretSet(secrets)
        self._tokens = TokenFormats(tokens)
        self._off = frozenset(off)
        self._masks_model_input = masks_model_input

    @property
    def longest(self) -> int:
        """The length of the longest secret or token that is not recognised by its shape."""
        return max(site_secrets().longest, self._registered.longest, self._tokens.longest)

    def fixed(self) -> Redactor:
        """Return a redactor whose rules do not change between calls, for a text that is redacted in several calls."""
        return self

    @property
    def for_model_input(self) -> Redactor:
        """The redactor for texts that are sent to a model: this one, or `BARE`."""
        return self if self._masks_model_input else BARE

    def clean_text(self, text: str, before: str = "", after: str = "") -> tuple[str, frozenset[str]]:
        """Return the redacted text, and the kinds of replacements: a subset of `nul`, `surrogate` and `redacted`.

        `before` and `after` are the surroundings of the text, which are searched but not returned.
        """
        text, changes = storable(text)
        if self.shapes and (spans := self.spans(text, before, after)):
            return self.replace(text, spans), changes | {REDACTED}
        return text, changes

    def clean(self, value: JSON) -> tuple[JSON, frozenset[str]]:
        """Return a JSON value with all strings and keys redacted, and the kinds of replacements.

        If nothing was replaced, the same object is returned.
        """
        replacements: dict[str, str] = {}
        changes = NOTHING
        todo: list[JSON] = [value]
        while todo:  # not recursive, because the depth is not limited
            item = todo.pop()
            if isinstance(item, str):
                changes |= self._add_replacement(replacements, item)
            elif isinstance(item, list):
                todo.extend(item)
            elif isinstance(item, dict):
                member_name = _member_name(item)
                for key, member in item.items():
                    if self._registered or self._tokens or not _PLAIN_KEY.fullmatch(key):
                        changes |= self._add_replacement(replacements, key)
                    if isinstance(member, str):
                        name = member_name if key in ("value", "Value") else key
                        changes |= self._add_replacement(replacements, member, name)
                    elif isinstance(member, list | dict):
                        todo.append(member)
        return (_rebuilt(value, replacements), changes) if changes else (value, NOTHING)

    def spans(self, text: str, before: str = "", after: str = "") -> list[SecretSpan]:
        """Return the secrets in a text in order. Overlapping ones are merged; existing placeholders are excluded."""
        spans, _ = self.search(before + text + after)
        past, size = len(before), len(text)
        return [
            SecretSpan(max(span.begin - past, 0), min(span.end - past, size), span.context - past, span.kind)
            for span in spans
            if past < span.end and span.begin < past + size
        ]

    def search(self, whole: str, past: int = 0) -> tuple[list[SecretSpan], list[str]]:
        """Return the secrets in a text in order, and the texts that the rounds of the search used.

        Each round searches the text with the placeholders and the secrets of earlier rounds replaced by NUL, so that
        positions stay the same. The text before `past` was searched already: secrets that extend over it are excluded.
        """
        blanks = [m.span() for m in PLACEHOLDER.finditer(whole)] if "[REDACTED:" in whole else []
        texts = [blank(whole, blanks)]
        spans: list[SecretSpan] = []
        for _ in range(ROUNDS):
            new_spans = secret_shapes.find(texts[-1])
            if self._off:
                new_spans = [span for span in new_spans if span.kind not in self._off]
            for secrets in self._known_values():
                new_spans += secrets.find(texts[-1])
            if self._tokens:
                new_spans += self._tokens.find(texts[-1])
            new_spans = sorted(span for span in new_spans if not span.begin < past < span.end)
            new_spans = list(exclude(join(new_spans), blanks)) if new_spans else new_spans
            if not new_spans:
                break
            spans = sorted(spans + new_spans)
            blanks = sorted(blanks + [(span.begin, span.end) for span in new_spans])
            texts.append(blank(whole, blanks))
        return spans, texts

    def unfinished(self, text: str) -> int:
        """Return the position from which further text could complete or change a secret; at most the text's length."""
        begin = secret_shapes.unfinished(text, lower_case(text))
        for secrets in self._known_values():
            begin = min(begin, secrets.unfinished(text))
        if self._tokens:
            begin = min(begin, self._tokens.unfinished(text))
        at = text.rfind("[", max(0, len(text) - _PLACEHOLDER_LENGTH))
        if at >= 0 and ("[REDACTED:".startswith(text[at:]) or _PLACEHOLDER_HEAD.match(text, at)):
            begin = min(begin, at)
        return begin

    def _add_replacement(self, replacements: dict[str, str], text: str, name: str = "") -> frozenset[str]:
        """Add the redacted form of a string to `replacements` if it differs. Return the kinds of replacements."""
        cleaned, changes = self.clean_text(text)
        if name and self.shapes and REDACTED not in changes and "[REDACTED:" not in text:
            cleaned, changes = self._clean_member(name, cleaned, changes)
        if changes:
            replacements[text] = cleaned
        return changes

    def _clean_member(self, name: str, text: str, changes: frozenset[str]) -> tuple[str, frozenset[str]]:
        """Return a member's text, redacted if its name makes it a secret, and `changes` with that of this method."""
        kind = kind_of_member(name, text)
        if kind and kind not in self._off:
            return placeholder(kind, text), changes | {REDACTED}
        if name.lower().endswith(("authorization", "cookie")):
            cleaned, more = self.clean_text(text, f"{name}: ")
            return cleaned, changes | more
        return text, changes

    def replace(self, text: str, spans: list[SecretSpan]) -> str:
        """Return the text with each span replaced by a placeholder."""
        parts: list[str] = []
        position = 0
        for span in spans:
            parts += text[position : span.begin], self.placeholder_of(text, span)
            position = span.end
        return "".join([*parts, text[position:]])

    def placeholder_of(self, text: str, span: SecretSpan) -> str:
        """Return the placeholder of a secret in a text."""
        return placeholder(span.kind, self._registered.plain(site_secrets().plain(text[span.begin : span.end])))

    def _known_values(self) -> Iterator[SecretSet]:
        return (secrets for secrets in (self._registered, site_secrets()) if secrets)


def storable(text: str) -> tuple[str, frozenset[str]]:
    """Return a text that can be stored, and the kinds of replacements.

    PostgreSQL cannot store NUL, and UTF-8 has no unpaired surrogates.
    """
    changes = NOTHING
    if "\0" in text:
        text, changes = text.replace("\0", "\ufffd"), frozenset({NUL})
    if text.isascii():
        return text, changes
    try:
        text.encode()  # much faster than a search
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text), changes | {SURROGATE}
    return text, changes


def _member_name(item: dict[str, JSON]) -> str:
    """Return the name that belongs to a member "value", as in `{"name": "password", "value": "…"}`."""
    for key in ("name", "key", "Name", "Key"):
        if isinstance(name := item.get(key), str):
            return name
    return "value"


def _rebuilt(value: JSON, replacements: dict[str, str]) -> JSON:
    """Return a copy of `value` in which the strings that are keys of `replacements` are replaced."""
    root: list[JSON] = [value]
    todo: list[tuple[Any, Any]] = [(root, 0)]  # a list and an index, or a dict and a key
    while todo:
        container, key = todo.pop()
        item: JSON = container[key]
        if isinstance(item, str):
            container[key] = replacements.get(item, item)
        elif isinstance(item, list):
            container[key] = items = list(item)
            todo.extend((items, index) for index in range(len(items)))
        elif isinstance(item, dict):
            container[key] = members = _replace_keys(item, replacements)
            todo.extend((members, name) for name in members)
    return root[0]


def _replace_keys(item: dict[str, JSON], replacements: dict[str, str]) -> dict[str, JSON]:
    """Return an object with its keys replaced. Keys that become equal get a number, so that no member is lost."""
    fresh: dict[str, JSON] = {}
    for key, member in item.items():
        name = base = replacements.get(key, key)
        count = 1
        while name in fresh or (name != key and name in item):
            count += 1
            name = f"{base}~{count}"
        fresh[name] = member
    return fresh


class ScopedRedactor(Redactor):
    """Redacts with the rules of the projects that are in scope (project_scope) at the time of the call.

    With `everywhere`, it uses the rules of all projects that this process has loaded, and loads none.
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        super().__init__()
        self._everywhere = everywhere

    def fixed(self) -> Redactor:
        """Return the redactor of the projects that are in scope now."""
        return _redactor_of(None, False) if self._everywhere else _redactor_of(project_scope.projects(), True)

    def clean_text(self, text: str, before: str = "", after: str = "") -> tuple[str, frozenset[str]]:
        return self.fixed().clean_text(text, before, after)

    def clean(self, value: JSON) -> tuple[JSON, frozenset[str]]:
        return self.fixed().clean(value)

    def search(self, whole: str, past: int = 0) -> tuple[list[SecretSpan], list[str]]:
        return self.fixed().search(whole, past)

    def unfinished(self, text: str) -> int:
        return self.fixed().unfinished(text)

    def replace(self, text: str, spans: list[SecretSpan]) -> str:
        return self.fixed().replace(text, spans)


class ModelInputRedactor(ScopedRedactor):
    """Redacts texts that are stored and sent to a model, if the projects in scope mask the input of models."""

    def fixed(self) -> Redactor:
        return super().fixed().for_model_input


def use_site_secrets(values: Callable[[], Iterable[str]]) -> None:
    """Set the function that returns the site's own secrets, which are always masked. It is called at the first use.

    As keys of JSON objects, secrets of up to 16 lower-case letters and `_` are not found.
    """
    global _values_of_site
    _values_of_site = values
    site_secrets.cache_clear()


@cache
def site_secrets() -> SecretSet:
    return SecretSet(_values_of_site())


_values_of_site: Callable[[], Iterable[str]] = tuple


def use_rules(redactor_of: Callable[[frozenset[UUID] | None, bool], Redactor]) -> None:
    """Set the function that returns the redactor for some projects (None: for all). Called once at startup.

    The second argument of the function says whether it may load changed rules.
    """
    global _redactor_of
    _redactor_of = redactor_of


#: Without the rules of any project.
BUILT_IN = Redactor()


def _without_rules(project_ids: frozenset[UUID] | None, may_load: bool) -> Redactor:
    return BUILT_IN


_redactor_of: Callable[[frozenset[UUID] | None, bool], Redactor] = _without_rules
#: With the rules of the projects in scope.
DEFAULT = ScopedRedactor()
#: For prompts, messages and tool outputs before they are stored. Texts that leave the site are redacted by `DEFAULT`.
MODEL_INPUT = ModelInputRedactor()
#: For lines of the log, which belong to no project. The writer of a line must not query the database.
EVERYWHERE = ScopedRedactor(everywhere=True)
#: For texts that are stored and sent to a model unredacted.
BARE = Redactor(shapes=False)
