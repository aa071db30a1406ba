"""The importers by name: built-in ones, and additions of installed packages and deployment modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import cast

from agentops.base.catalogue import Catalogue, CatalogueEntry, Extension, ExtensionFailed, build, members_of, ready
from runs.external.importers.atif import AtifImporter
from runs.external.importers.base import MAX_DOCUMENT, SAMPLE, Importer, ImportFile, ImportRefused
from runs.external.importers.claude_agent_sdk import ClaudeAgentSdkImporter
from runs.external.importers.claude_code_sessions import ClaudeCodeImporter
from runs.external.importers.codex import CodexImporter
from runs.external.importers.gemini_cli import GeminiCliImporter
from runs.external.importers.inspect_log import InspectLogImporter
from runs.external.importers.langfuse_export import LangfuseImporter
from runs.external.importers.openai_chat import OpenAIChatImporter
from runs.external.importers.opencode import OpencodeImporter
from runs.external.importers.openhands import OpenHandsImporter
from runs.external.importers.swe_agent import MiniSweAgentImporter, SweAgentImporter

#: Required members of an added importer.
MEMBERS = ("name", "title", "detect", "read")
#: In the order in which they are tried: formats that are recognised with certainty come first.
BUILTIN: tuple[Importer, ...] = (
    ClaudeCodeImporter(),
    CodexImporter(),
    GeminiCliImporter(),
    OpencodeImporter(),
    ClaudeAgentSdkImporter(),
    AtifImporter(),
    InspectLogImporter(),
    LangfuseImporter(),
    SweAgentImporter(),
    MiniSweAgentImporter(),
    OpenHandsImporter(),
    OpenAIChatImporter(),
)


class ImporterCatalogue(Catalogue[Importer]):
    """Importers in order of detection. Added ones come first, so that they can replace built-in ones."""

    kind = "importer"
    group = "agentops.importers"
    setting = "AGENTOPS_IMPORTER_MODULES"
    may_replace = True

    def candidates(self, extension: Extension, value: object) -> Iterable[object]:
        """Return the object that an entry point names, or the public importer classes of a module."""
        if not isinstance(value, ModuleType):
            return [value]
        built_in = set(map(type, BUILTIN))  # a module may import a built-in class to extend it
        classes = [each for each in members_of(value) if isinstance(each, type) and each not in built_in]
        importers = [each for each in classes if all(hasattr(each, member) for member in MEMBERS)]
        if not importers:
            raise ExtensionFailed(extension.source, f"contains no class with {', '.join(MEMBERS)}")
        return importers

    def make(self, extension: Extension, candidate: object) -> tuple[str, Importer]:
        importer = cast("Importer", build(extension, candidate, MEMBERS))
        return importer.name, importer

    def describe(self, entry: CatalogueEntry[Importer]) -> str:
        return entry.part.title

    def entries(self) -> list[CatalogueEntry[Importer]]:
        """Return all importers, in order of detection."""
        return list(self.all().values())


IMPORTERS = ImporterCatalogue({importer.name: ready(importer) for importer in BUILTIN})


def importers() -> Sequence[Importer]:
    """Return all importers, in order of detection."""
    return [entry.part for entry in IMPORTERS.entries()]


def find(file: ImportFile, name: str = "") -> Importer:
    """Return the importer with this name, or the first importer that recognises the file. Raises `ImportRefused`."""
    known = ", ".join(importer.name for importer in importers())
    for importer in importers():
        if importer.name == name or (not name and importer.detect(file)):
            return importer
    if name:
        raise file.refuse(f"no format is called {name!r}: known are {known}")
    raise file.refuse(f"none of these formats: {known}{_why_unreadable(file)}")


def _why_unreadable(file: ImportFile) -> str:
    """Return why a file cannot be parsed as JSON, as the end of a message; empty if it can."""
    if not file.beginning(SAMPLE).strip():
        return "; the file is empty"
    if file.first_lines():
        return ""
    try:
        file.document()
    except ImportRefused as error:
        return f"; {error.detail}" if file.stored.size > MAX_DOCUMENT else f"; not JSON: {error.detail}"
    return ""
