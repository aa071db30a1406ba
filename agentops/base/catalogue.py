"""Catalogues of parts by name: built-in parts, and parts that packages and modules add to this site.

Added parts are found by entry point, or in modules that a setting names.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getdoc
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from django.conf import settings
from django.utils.module_loading import import_string

T = TypeVar("T")

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


def installed(group: str, modules: Sequence[str], setting: str) -> list[Extension]:
    """Return the extensions of a group of entry points, by name, and then the modules that `setting` names."""
    entries = sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))
    found = [Extension(entry.name, _source(entry), entry.load) for entry in entries]
    return [*found, *(Extension(name, f"module {name!r} of {setting}", _importer(name)) for name in modules)]


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


def members_of(value: object) -> list[object]:
    """Return the public members of a module in the order of their definition, each once. Not a module: the object."""
    if not isinstance(value, ModuleType):
        return [value]
    members = [member for name, member in vars(value).items() if not name.startswith("_")]
    return list({id(member): member for member in members}.values())


class CatalogueEntry(Generic[T]):
    """A part by its name, and its source. A built-in part is made when it is first used."""

    def __init__(self, name: str, make: Callable[[], T], source: str = BUILT_IN) -> None:
        self.name = name
        self.source = source
        self._make = make

    @cached_property
    def part(self) -> T:
        return self._make()


class Catalogue(ABC, Generic[T]):
    """The parts of one kind by name. Added parts are loaded when a name is needed that is not built in.

    A faulty extension never stops the site: it is logged, kept in `faults` and left out. Names are unique.
    """

    #: In messages and lists.
    kind: ClassVar[str]
    #: The group of entry points, and the setting that names modules.
    group: ClassVar[str]
    setting: ClassVar[str]
    #: Whether an added part may have the name of a built-in one, and then replaces it.
    may_replace: ClassVar[bool] = False

    def __init__(self, built_in: Mapping[str, Callable[[], T]]) -> None:
        """`built_in` makes the built-in parts."""
        self._built_in = {name: CatalogueEntry(name, make) for name, make in built_in.items()}
        self._added: dict[str, CatalogueEntry[T]] = {}
        #: The name of an extension, and its fault.
        self._faults: list[tuple[str, ExtensionFailed]] = []
        self._is_loaded = False
        # Reentrant, because a module that is loaded may read the catalogue.
        self._loading = threading.RLock()

    # --- What a kind defines ---

    def modules(self) -> Sequence[str]:
        """Return the modules that the setting names."""
        modules: Sequence[str] = getattr(settings, self.setting)
        return modules

    @abstractmethod
    def candidates(self, extension: Extension, value: object) -> Iterable[Any]:
        """Return what `make` turns into parts, from the loaded object of an extension. Raises `ExtensionFailed`."""

    @abstractmethod
    def make(self, extension: Extension, candidate: Any) -> tuple[str, T]:
        """Return the name and the part of a candidate. Raises `ExtensionFailed`."""

    def check_name(self, name: str) -> None:
        """Raise ValueError if a part cannot be added under this name."""
        if name in self._added or (name in self._built_in and not self.may_replace):
            raise ValueError(f"the {self.kind} {name!r} exists already")

    def describe(self, entry: CatalogueEntry[T]) -> str:
        """Return a text about a part for lists, of which the first line is shown."""
        return getdoc(entry.part) or ""

    # --- Reading and changing it ---

    def add(self, name: str, make: Callable[[], T]) -> None:
        """Add a built-in part. Raises ValueError for an invalid or taken name."""
        self.check_name(name)
        self._built_in[name] = CatalogueEntry(name, make)

    def get(self, name: str) -> T | None:
        """Return the part of this name, or None."""
        entry = None if self.may_replace else self._built_in.get(name)
        entry = entry or self.all().get(name)
        return entry.part if entry is not None else None

    def names(self) -> list[str]:
        """Return the sorted names of all parts."""
        return sorted(self.all())

    def entries(self) -> list[CatalogueEntry[T]]:
        """Return all parts, sorted by name."""
        return [entry for _, entry in sorted(self.all().items())]

    def all(self) -> dict[str, CatalogueEntry[T]]:
        """Return all parts by name: added ones first, each in order."""
        with self._loading:
            if not self._is_loaded:
                self._is_loaded = True
                for extension in installed(self.group, self.modules(), self.setting):
                    self._add_parts_of(extension)
            return {**self._added, **{n: entry for n, entry in self._built_in.items() if n not in self._added}}

    def faults(self) -> list[ExtensionFailed]:
        """Return why extensions, or parts of them, cannot be used."""
        self.all()
        return [fault for _, fault in self._faults]

    def fault_of(self, extension: str) -> ExtensionFailed | None:
        """Return the first fault of the extension of this name."""
        self.all()
        return next((fault for name, fault in self._faults if name == extension), None)

    def forget(self) -> None:
        """Search for added parts again at the next use."""
        with self._loading:
            self._added, self._faults, self._is_loaded = {}, [], False

    def _add_parts_of(self, extension: Extension) -> None:
        try:
            candidates = list(self.candidates(extension, extension.load()))
        except ExtensionFailed as fault:
            self._note(extension, fault)
            return
        for candidate in candidates:
            try:
                name, part = self.make(extension, candidate)
                self.check_name(name)
                self._added[name] = CatalogueEntry(name, ready(part), extension.source)
            except ExtensionFailed as fault:
                self._note(extension, fault)
            except ValueError as error:
                self._note(extension, ExtensionFailed(extension.source, str(error)))

    def _note(self, extension: Extension, fault: ExtensionFailed) -> None:
        logger.error("An extension is left out. %s", fault)
        self._faults.append((extension.name, fault))


def ready(part: T) -> Callable[[], T]:
    """Return a function that returns the part."""
    return lambda: part


def imported(path: str) -> Callable[[], Any]:
    """Return a function that imports a class by its dotted path, and makes an object of it."""

    def make() -> Any:
        return import_string(path)()

    return make


def _importer(module: str) -> Callable[[], object]:
    return lambda: import_module(module)


def _source(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"entry point {entry.group}: {entry.name} = {entry.value}{package}"
