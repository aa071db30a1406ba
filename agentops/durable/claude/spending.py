"""Tokens that a program reports in addition to its answers: of sub-agents, and of its internal model calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentops.durable.answers import Usage
from agentops.durable.claude.messages import ModelMessage, usage_of

#: The kinds of tokens in which a program reports its totals, and the members of an answer's usage.
_KINDS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cacheReadInputTokens",
    "cache_write_tokens": "cacheCreationInputTokens",
}
#: What programs add to the name of a model: the date of its version, and the size of its context.
_VERSION = re.compile(r"(-\d{8})?(\[\w+\])?$")


class ClaudeSpending:
    """The tokens of one process of the program that are counted already."""

    def __init__(self) -> None:
        self._counted: dict[str, dict[str, int]] = {}

    def count(self, message: ModelMessage) -> None:
        """Count an answer."""
        usage = usage_of(message.usage)
        self._add(message.model, {name: int(getattr(usage, name)) for name in _KINDS})

    def rest(self, totals: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """Return the tokens by model that a program reports and that are not counted yet, and count them.

        `totals`: of the process since its start, by model.
        """
        reported: dict[str, dict[str, int]] = {}
        for model, numbers in totals.items():
            tokens = {name: int(numbers.get(kind) or 0) for name, kind in _KINDS.items()}
            # The API does not include cached tokens in the input.
            tokens["input_tokens"] += tokens["cache_read_tokens"] + tokens["cache_write_tokens"]
            known = reported.setdefault(_VERSION.sub("", model), dict.fromkeys(_KINDS, 0))
            for name, number in tokens.items():
                known[name] += number
        rest: dict[str, dict[str, int]] = {}
        for model, tokens in reported.items():
            counted = self._counted.get(model, {})
            more = {name: max(0, number - counted.get(name, 0)) for name, number in tokens.items()}
            if any(more.values()):
                rest[model] = more
                self._add(model, more)
        return rest

    def _add(self, model: str, tokens: Mapping[str, int]) -> None:
        counted = self._counted.setdefault(_VERSION.sub("", model), dict.fromkeys(_KINDS, 0))
        for name, number in tokens.items():
            counted[name] += number


def usage_from(tokens: Mapping[str, int]) -> Usage:
    """Return stored tokens as the usage of an answer."""
    return Usage(**{name: tokens.get(name, 0) for name in _KINDS if name in asdict(Usage())})
