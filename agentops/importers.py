"""The public imports for modules with a custom import format; see docs/guides/import.md."""

from __future__ import annotations

from runs.external.event_input import IncomingEvent
from runs.external.importers.base import ImportedRun, Importer, ImportFile, ImportRefused, Item
from runs.statuses import RunStatus
from timeline.events.llm import LlmTurnEnd, MessageAdded, ToolRequest
from timeline.events.tool import ToolEnd, ToolStart

__all__ = [
    "ImportFile",
    "ImportRefused",
    "ImportedRun",
    "Importer",
    "IncomingEvent",
    "Item",
    "LlmTurnEnd",
    "MessageAdded",
    "RunStatus",
    "ToolEnd",
    "ToolRequest",
    "ToolStart",
]
