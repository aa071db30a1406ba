"""The texts of benchmarked runs, which compress like prose: repeated text would favour stores that compress.

With the same seed, all measured programs get the same texts.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ONSETS = ["b", "d", "g", "gr", "k", "kl", "l", "m", "n", "r", "sk", "st", "t", "tr", "v"]
NUCLEI = ["a", "e", "i", "o", "u", "ae", "io"]
CODAS = ["", "", "", "l", "n", "r", "s"]
PROMPT = "Work through the whole list and report what you find."


@dataclass(frozen=True)
class PayloadStep:
    """One turn: the model responds with `text` and a tool call with `arguments`; the tool returns `output`."""

    call_id: str
    text: str
    tool: str
    arguments: dict[str, Any]
    output: str

    @property
    def size(self) -> int:
        """Return the bytes of the contents, which any store has to keep."""
        return sum(len(said.encode()) for said in (self.text, json.dumps(self.arguments), self.output))


class Prose:
    """Sentences over a generated vocabulary with the word frequencies of natural language."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        made = random.Random(1)
        words = {self._word(made) for _ in range(6000)}
        self._words = sorted(words, key=lambda word: (len(word), word))
        self._weights = [1 / (rank + 8) for rank in range(len(self._words))]

    def text(self, size: int) -> str:
        sentences: list[str] = []
        length = 0
        while length < size:
            words = self._random.choices(self._words, self._weights, k=self._random.randint(5, 18))
            sentence = " ".join(words).capitalize() + self._random.choice(".....?:")
            sentences.append(sentence)
            length += len(sentence) + 1
        return " ".join(sentences)[:size]

    def step(self, number: int, size: int) -> PayloadStep:
        path = "/".join(self._random.choices(self._words[200:], k=3))
        arguments = {"path": f"{path}.py", "offset": self._random.randint(0, 2000), "limit": 200}
        token = self._random.getrandbits(96)
        return PayloadStep(f"toolu_{token:024x}", self.text(size), "read_file", arguments, self.text(size))

    @staticmethod
    def _word(source: random.Random) -> str:
        count = source.choices([1, 2, 3, 4], [4, 5, 3, 1])[0]
        return "".join(source.choice(ONSETS) + source.choice(NUCLEI) + source.choice(CODAS) for _ in range(count))


def steps(count: int, *, size: int = 1000, seed: int = 7) -> list[PayloadStep]:
    prose = Prose(seed)
    return [prose.step(number, size) for number in range(count)]


def write_fixture(folder: Path, name: str, turns: list[PayloadStep]) -> None:
    """Write the turns as a fixture for the `fixture` provider."""
    calls: list[dict[str, Any]] = [_call(turn) for turn in turns]
    calls[0]["input"]["prompt"] = PROMPT
    calls.append({"end": True})
    (folder / f"{name}.json").write_text(json.dumps({"calls": calls}))


def write_plain(path: Path, turns: list[PayloadStep]) -> None:
    """Write the turns for a peer, whose process does not import agentops."""
    path.write_text(json.dumps([asdict(turn) for turn in turns]))


def _call(turn: PayloadStep) -> dict[str, Any]:
    asked = {"type": "tool_call", "callId": turn.call_id, "toolName": turn.tool, "args": turn.arguments, "atMs": 900}
    return {
        "input": {},
        "output": {"text": turn.text, "usage": {"inputTokens": 1800, "outputTokens": 260}, "durationMs": 1000},
        "events": [asked],
        "tools": {turn.call_id: {"output": turn.output, "durationMs": 12}},
    }
