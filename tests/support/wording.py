"""Counts turns of phrase that readers have to read twice, in docstrings, comments and names of tests.

`python -m tests.support.wording DIRECTORY… [--worst N]` prints how often each occurs in 10,000 words, and which files
have most of them. By the same count healthchecks has 7, inspect 13, procrastinate 14, dbos 15 and pydantic-ai 20.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TURNS = {
    "somebody, nobody, whoever": r"\b(somebody|nobody|whoever|anybody|everybody)\b",
    "what it is that": r"\bwhat (is|was|has|they|it|a|an|the|can|could|must|may|will|others|somebody)\b",
    "of its own, by itself": r"\b(of (its|their|one's|his) own|by (itself|themselves))\b",
    "is none, is no": r"\b(is none|are none|that is no|is no [a-z]+)\b",
    "goes on": r"\b(goes?|going|went) on\b",
    "is told, asked, shown, said, found": r"\b(is|are|was|were) (told|asked|said|shown|found|had)\b",
    "stands, lies": r"\b(stands|lies|stand|lie)\b",
    "let": r"\blets?\b",
    "meanwhile": r"\bmeanwhile\b",
    "all the same, beside, apart from": r"\b(all the same|beside|apart from|amid)\b",
    "those that, one that": r"\b(those|one|ones|that) (that|which|of)\b",
}
LIMIT = 10
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in TURNS.items()}


def texts_of(path: Path) -> Iterator[str]:
    """Yield the docstrings, the lines of comments and the names of tests of a module."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            if docstring := ast.get_docstring(node):
                yield docstring
            if (name := getattr(node, "name", "")).startswith("test_"):
                yield name.replace("_", " ")
    yield from (line.strip("# ") for line in source.split("\n") if line.strip().startswith("#"))


class Count:
    """The counted phrases in the texts of directories."""

    def __init__(self, *roots: Path) -> None:
        self.words = 0
        self.turns: Counter[str] = Counter()
        self.files: Counter[Path] = Counter()
        for path in sorted(path for root in roots for path in root.rglob("*.py")):
            if "migrations" not in path.parts:
                self._add(path)

    def _add(self, path: Path) -> None:
        for text in texts_of(path):
            self.words += len(text.split())
            for name, pattern in _PATTERNS.items():
                if number := len(pattern.findall(text)):
                    self.turns[name] += number
                    self.files[path] += number

    def rate(self, turns: int) -> float:
        """Return the count for each 10,000 words."""
        return turns / max(self.words, 1) * 10_000

    @property
    def total(self) -> float:
        return self.rate(self.turns.total())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="+", type=Path, metavar="DIRECTORY")
    parser.add_argument("--worst", type=int, default=0, help="files to list")
    options = parser.parse_args()
    count = Count(*options.roots)
    for name in TURNS:
        print(f"{count.rate(count.turns[name]):6.1f}  {name}")
    for path, number in count.files.most_common(options.worst):
        print(f"{number:6}  {path}")
    print(f"{count.total:.0f} turns in 10,000 words ({count.words:,} words); the limit is {LIMIT}")


if __name__ == "__main__":
    main()
