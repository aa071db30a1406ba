"""The importers by name: those of this site, and those that installed packages add as entry points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import cast

from runs import extensions
from runs.extensions import ExtensionFailed
from runs.external.importers.atif import AtifImporter
from runs.external.importers.base import MAX_FILE, SAMPLE, Importer, ImportFile, ImportRefused
from runs.external.importers.claude_agent_sdk import ClaudeAgentSdkImporter
from runs.external.importers.claude_code_sessions import ClaudeCodeImporter
from runs.external.importers.codex import CodexImporter
from runs.external.importers.gemini_cli import GeminiCliImporter
from runs.external.importers.inspect_log import InspectLogImporter
from runs.external.importers.langfuse_export import LangfuseImporter
from runs.external.importers.mini_swe_agent import MiniSweAgentImporter
from runs.external.importers.openai_chat import OpenAIChatImporter
from runs.external.importers.openhands import OpenHandsImporter
from runs.external.importers.swe_agent import SweAgentImporter

#: What an importer of an entry point must have.
MEMBERS = ("name", "title", "detect", "read")
#: In the order of detection: formats that are easily recognised first.
BUILTIN: tuple[Importer, ...] = (
    ClaudeCodeImporter(),
    CodexImporter(),
    GeminiCliImporter(),
    ClaudeAgentSdkImporter(),
    AtifImporter(),
    InspectLogImporter(),
    LangfuseImporter(),
    SweAgentImporter(),
    MiniSweAgentImporter(),
    OpenHandsImporter(),
    OpenAIChatImporter(),
)


@cache
def importers() -> Sequence[Importer]:
    """Return all importers. Those of entry points come first, so that they can replace one of the same name."""
    added = list(_added([]))
    names = {importer.name for importer in added}
    return (*added, *(importer for importer in BUILTIN if importer.name not in names))


def _added(faults: list[ExtensionFailed]) -> Iterator[Importer]:
    """Yield the importers of entry points. Those that cannot be used are left out and added to `faults`."""
    for extension, factory in extensions.load_each(extensions.installed(extensions.IMPORTERS), faults):
        try:
            yield cast("Importer", extensions.build(extension, factory, MEMBERS))
        except ExtensionFailed as fault:
            extensions.note(fault, faults)


def find(file: ImportFile, name: str = "") -> Importer:
    """Return the importer with this name, or the first one that recognises the file. Raises `ImportRefused`."""
    known = ", ".join(importer.name for importer in importers())
    for importer in importers():
        if importer.name == name or (not name and importer.detect(file)):
            return importer
    if name:
        raise file.refuse(f"no format is called {name!r}: known are {known}")
    raise file.refuse(f"none of these formats: {known}{_why_unreadable(file)}")


def _why_unreadable(file: ImportFile) -> str:
    """Return what is wrong with a file of no format, if it is no JSON at all."""
    if not file.beginning(SAMPLE).strip():
        return "; the file is empty"
    if file.first_lines():
        return ""
    try:
        file.document()
    except ImportRefused as error:
        return f"; {error.detail}" if file.stored.size > MAX_FILE else f"; not JSON: {error.detail}"
    return ""
