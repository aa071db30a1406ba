"""Parts that other packages add to this site, found by entry point or in modules named by a setting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

TOOLS, PROVIDERS, IMPORTERS, HOOKS, SINKS = (
    "agentops.tools", "agentops.providers", "agentops.importers", "agentops.hooks", "agentops.sinks",
)  # fmt: skip

#: The source of agentops' built-in parts.
BUILT_IN = "built in"

logger = logging.getLogger(__name__)


class ExtensionFailed(Exception):
    """An extension cannot be used. The message names its source and the fault."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason


@dataclass(frozen=True)
class Extension:
    """An installed extension that is not loaded yet."""

    #: The name of the entry point, or of the module.
    name: str
    #: Its source, for messages.
    source: str
    read: Callable[[], object]

    def load(self) -> object:
        """Import the extension and return it. Raises `ExtensionFailed`, also if its module ends the process."""
        try:
            return self.read()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}".strip().removesuffix(":")
            raise ExtensionFailed(self.source, f"cannot be loaded: {reason}") from error


def installed(group: str, modules: Sequence[str] = (), setting: str = "") -> list[Extension]:
    """Return the extensions of a group of entry points, by name, and then the modules that `setting` names."""
    entries = sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))
    found = [Extension(entry.name, _source(entry), entry.load) for entry in entries]
    return [*found, *(Extension(name, f"module {name!r} of {setting}", _importer(name)) for name in modules)]


def load_each(extensions: Sequence[Extension], faults: list[ExtensionFailed]) -> Iterator[tuple[Extension, object]]:
    """Yield each loadable extension with its loaded object. The others are logged and added to `faults`."""
    for extension in extensions:
        try:
            value = extension.load()
        except ExtensionFailed as fault:
            note(fault, faults)
        else:
            yield extension, value


def build(extension: Extension, factory: object, members: Sequence[str]) -> object:
    """Call the class or function that an extension names, and return the result. Raises `ExtensionFailed`.

    `members` are the attributes that the result must have.
    """
    if not callable(factory):
        raise ExtensionFailed(extension.source, f"names a {type(factory).__name__}; expected a class or a function")
    try:
        made = factory()
    except Exception as error:
        raise ExtensionFailed(extension.source, f"{factory!r} failed: {type(error).__name__}: {error}") from error
    missing = [member for member in members if not hasattr(made, member)]
    if missing:
        raise ExtensionFailed(extension.source, f"{type(made).__name__} lacks {', '.join(missing)}")
    return made


def public(module: ModuleType) -> list[object]:
    """Return the public members of a module in the order of their definition, each once."""
    members = [member for name, member in vars(module).items() if not name.startswith("_")]
    return list({id(member): member for member in members}.values())


def note(fault: ExtensionFailed, faults: list[ExtensionFailed]) -> None:
    """Log a fault and keep it. A faulty extension never stops the site."""
    logger.error("An extension is left out. %s", fault)
    faults.append(fault)


def _importer(module: str) -> Callable[[], object]:
    return lambda: import_module(module)


def _source(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"entry point {entry.group}: {entry.name} = {entry.value}{package}"
