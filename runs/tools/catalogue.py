"""The tools of this site: the built-in ones, and the toolset that plays recordings.

May import the other tools, and runs.fixtures for the recordings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from runs.fixtures import library
from runs.fixtures.format import ToolResult
from runs.tools.base import Toolset
from runs.tools.builtin import BUILTIN
from runs.tools.recorded import RecordedTools
from runs.tools.registry import RECORDED, Registry
from runs.tools.speaking import SPEAKING


def _recorded(settings: Mapping[str, Any]) -> Toolset:
    """The tools of a fixture: the agent's own, whose name is its model's, or the one that `fixture` names."""
    name = str(settings.get("fixture") or settings["model"])
    library.find(name)
    return RecordedTools(partial(_lookup, name), pace=float(settings.get("pace", 0)), settings=settings)


@dataclass(frozen=True)
class Recorded:
    """A fixture's entry as the recorded tools read it."""

    output: str | list[Any] = ""
    error: bool = False
    duration_ms: int | None = None
    unknown: bool = False


def _lookup(name: str, call_id: str, model_call: int) -> Recorded | None:
    found = library.load(name).tool_result(call_id, model_call)
    if isinstance(found, ToolResult):
        return Recorded(found.output, found.error, found.duration_ms)
    return None if found is None else Recorded(unknown=True)


TOOLS = Registry([*BUILTIN, *SPEAKING])
TOOLS.register_toolset(RECORDED, _recorded)
