"""The stub of Claude Code that a test has installed, and the files that it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.claude.scripted_program import scripted_program


@dataclass(frozen=True)
class StubProgram:
    """The folder with the program, its script, its journal and its ledger."""

    folder: Path

    @property
    def journal(self) -> list[dict[str, Any]]:
        path = self.folder / "journal"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def starts(self) -> list[list[str]]:
        """The arguments of each start."""
        return [entry["arguments"] for entry in self.journal if "arguments" in entry]

    @property
    def heard(self) -> list[Any]:
        """The user messages that the stub received, in order."""
        return [entry["user"] for entry in self.journal if "user" in entry]

    @property
    def ledger(self) -> list[str]:
        """Return the tools that ran, in order."""
        path = self.folder / "ledger"
        return path.read_text().split() if path.exists() else []

    def script(self, acts: list[dict[str, Any]]) -> None:
        """Make the stub follow a plan."""
        scripted_program(self.folder, {"plan": acts})

    def script_turns(self, *turns: list[dict[str, Any]]) -> None:
        """Make the stub play a turn for each user message."""
        scripted_program(self.folder, list(turns))
