"""The importers by name: built-in ones, and additions of installed packages and deployment modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import cast

from django.conf import settings

from runs import extensions
from runs.extensions import Extension, ExtensionFailed
from runs.external.importers.atif import AtifImporter
from runs.external.importers.base import MAX_DOCUMENT, SAMPLE, Importer, ImportFile, ImportRefused
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

SETTING = "AGENTOPS_IMPORTER_MODULES"
#: Required members of an added importer.
MEMBERS = ("name", "title", "detect", "read")
#: In order of detection: the easily recognised formats come first.
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


@dataclass(frozen=True)
class AddedImporter:
    """An importer that a package or a module adds, and its origin."""

    importer: Importer
    source: str


@cache
def _catalogue() -> tuple[Sequence[AddedImporter], Sequence[ExtensionFailed]]:
    """Return the added importers, and the extensions that failed to load and are left out."""
    faults: list[ExtensionFailed] = []
    candidates = extensions.installed(extensions.IMPORTERS, settings.AGENTOPS_IMPORTER_MODULES, SETTING)
    loaded = extensions.load_each(candidates, faults)
    return [each for extension, value in loaded for each in _made(extension, value, faults)], faults


def added() -> Sequence[AddedImporter]:
    """Return the importers of packages and modules."""
    return _catalogue()[0]


def faults() -> list[ExtensionFailed]:
    """Return why importers of packages or modules are missing."""
    return list(_catalogue()[1])


def reload() -> None:
    """Discover the importers again at the next use."""
    _catalogue.cache_clear()


def importers() -> Sequence[Importer]:
    """Return all importers. Added importers come first, so that they can replace built-in importers."""
    own = [each.importer for each in added()]
    names = {importer.name for importer in own}
    return (*own, *(importer for importer in BUILTIN if importer.name not in names))


def _made(extension: Extension, value: object, faults: list[ExtensionFailed]) -> Iterator[AddedImporter]:
    """Yield the importer of an entry point, or the importers among the public classes of a module."""
    try:
        factories = _classes_of(extension, value) if isinstance(value, ModuleType) else [value]
        for factory in factories:
            importer = cast("Importer", extensions.build(extension, factory, MEMBERS))
            yield AddedImporter(importer, extension.source)
    except ExtensionFailed as fault:
        extensions.note(fault, faults)


def _classes_of(extension: Extension, module: ModuleType) -> list[object]:
    built_in = set(map(type, BUILTIN))  # a module may import a built-in class to extend it
    members = [member for member in extensions.public(module) if isinstance(member, type) and member not in built_in]
    classes: list[object] = [each for each in members if all(hasattr(each, member) for member in MEMBERS)]
    if not classes:
        raise ExtensionFailed(extension.source, f"contains no class with {', '.join(MEMBERS)}")
    return classes


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
    """Return the reason why a file of unknown format cannot be parsed as JSON."""
    if not file.beginning(SAMPLE).strip():
        return "; the file is empty"
    if file.first_lines():
        return ""
    try:
        file.document()
    except ImportRefused as error:
        return f"; {error.detail}" if file.stored.size > MAX_DOCUMENT else f"; not JSON: {error.detail}"
    return ""
