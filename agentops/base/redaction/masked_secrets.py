"""Masked values in forms. A mark that a form returns unchanged represents the secret it replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import JSON, MARK


class MaskedSecrets:
    """The secrets of stored values, by the marks that replace them on pages."""

    def __init__(self, *values: object) -> None:
        self._secrets: dict[str, str] = {}
        for value in values:
            self._learn(value, masked(value))

    def restore(self, value: Any) -> Any:
        """Return a copy of a value with its marks replaced by their secrets. Unknown marks stay."""
        if isinstance(value, str):
            return MARK.sub(lambda match: self._secrets.get(match[0], match[0]), value) if self._secrets else value
        if isinstance(value, Mapping):
            return {self.restore(key): self.restore(member) for key, member in value.items()}
        return [self.restore(item) for item in value] if isinstance(value, list) else value

    def _learn(self, value: object, shown: object) -> None:
        if isinstance(value, dict) and isinstance(shown, dict):
            for (key, member), (shown_key, shown_member) in zip(value.items(), shown.items(), strict=True):
                self._learn(key, shown_key)
                self._learn(member, shown_member)
        elif isinstance(value, list) and isinstance(shown, list):
            for item, shown_item in zip(value, shown, strict=True):
                self._learn(item, shown_item)
        elif isinstance(value, str) and isinstance(shown, str) and value != shown:
            self._learn_text(value, shown)

    def _learn_text(self, text: str, shown: str) -> None:
        if MARK.fullmatch(shown):  # a secret because of its name: the text does not tell
            self._secrets[shown] = text
            return
        redactor = REDACTOR.fixed()
        for span in redactor.spans(text):
            self._secrets[redactor.mark_of(text, span)] = text[span.begin : span.end]


def masked(value: Any) -> Any:
    """Return a JSON value with its secrets replaced by marks."""
    return REDACTOR.clean(cast("JSON", value))[0]
