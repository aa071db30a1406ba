"""Catalogues of parts by name, such as tools: the built-in ones, and the ones added by extensions.

An extension is an entry point of an installed package, or a module that a setting names.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getdoc
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from django.conf import settings
from django.utils.module_loading import import_string

T = TypeVar("T")

#: The source of built-in parts, in lists.
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
    """An extension that may not be loaded yet."""

    #: The name of the entry point, or of the module.
    name: str
    #: For messages: the entry point and its package, or the module and the setting that names it.
    source: str
    #: Imports the extension.
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
    extensions = [Extension(entry.name, _source(entry), entry.load) for entry in entries]
    return extensions + [
        Extension(name, f"module {name!r} of {setting}", partial(import_module, name)) for name in modules
    ]


def build(extension: Extension, factory: object, members: Sequence[str]) -> object:
    """Call the class or function that an extension names, and return the result. Raises `ExtensionFailed`.

    `members`: the attributes that the result must have.
    """
    if not callable(factory):
        raise ExtensionFailed(extension.source, f"names a {type(factory).__name__}; expected a class or a function")
    try:
        part = factory()
    except Exception as error:
        raise ExtensionFailed(extension.source, f"{factory!r} failed: {type(error).__name__}: {error}") from error
    missing = [member for member in members if not hasattr(part, member)]
    if missing:
        raise ExtensionFailed(extension.source, f"{type(part).__name__} lacks {', '.join(missing)}")
    return part


def members_of(value: object) -> list[object]:
    """Return the public members of a module, in the order of their definition; of any other value, the value itself."""
    if not isinstance(value, ModuleType):
        return [value]
    members = [member for name, member in vars(value).items() if not name.startswith("_")]
    return list({id(member): member for member in members}.values())


class CatalogueEntry(Generic[T]):
    """A part with its name and source. `make` makes the part when it is first used."""

    def __init__(self, name: str, make: Callable[[], T], source: str = BUILT_IN) -> None:
        self.name = name
        self.source = source
        self._make = make

    @cached_property
    def part(self) -> T:
        return self._make()


class Catalogue(ABC, Generic[T]):
    """The parts of one kind by name. Extensions are loaded when a name is needed that is not built in.

    An extension that cannot be used does not stop the site: it is logged, omitted, and reported by `faults`.
    """

    #: The kind in messages and lists.
    kind: ClassVar[str]
    #: The group of entry points.
    group: ClassVar[str]
    #: The setting that names modules.
    setting: ClassVar[str]
    #: Whether an added part replaces the built-in part of the same name. Otherwise the added part is refused.
    may_replace: ClassVar[bool] = False

    def __init__(self, built_in: Mapping[str, Callable[[], T]]) -> None:
        """Prepare a catalogue. `built_in`: for each built-in part, a function that makes it."""
        self._built_in = {name: CatalogueEntry(name, make) for name, make in built_in.items()}
        self._added: dict[str, CatalogueEntry[T]] = {}
        #: Names of extensions, each with a fault.
        self._faults: list[tuple[str, ExtensionFailed]] = []
        self._is_loaded = False
        # Re-entrant, because a module that is being loaded may read the catalogue.
        self._loading = threading.RLock()

    # --- What a subclass defines ---

    def modules(self) -> Sequence[str]:
        """Return the modules that the setting names."""
        modules: Sequence[str] = getattr(settings, self.setting)
        return modules

    @abstractmethod
    def candidates(self, extension: Extension, value: object) -> Iterable[Any]:
        """Return the objects of a loaded extension that `make` turns into parts. Raises `ExtensionFailed`.

        `value`: the module or object that was loaded.
        """

    @abstractmethod
    def make(self, extension: Extension, candidate: Any) -> tuple[str, T]:
        """Return the name and the part of a candidate. Raises `ExtensionFailed`."""

    def check_name(self, name: str) -> None:
        """Raise `ValueError` if a part cannot be added under this name."""
        if name in self._added or (name in self._built_in and not self.may_replace):
            raise ValueError(f"the {self.kind} {name!r} exists already")

    def describe(self, entry: CatalogueEntry[T]) -> str:
        """Return a text about a part. Lists show its first line."""
        return getdoc(entry.part) or ""

    # --- Reading and changing the catalogue ---

    def add(self, name: str, make: Callable[[], T]) -> None:
        """Add a built-in part. Raises `ValueError` for an invalid name, or one that exists."""
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
        """Return all parts by name, after loading the extensions: first the added ones, then the built-in ones."""
        with self._loading:
            if not self._is_loaded:
                self._is_loaded = True
                for extension in installed(self.group, self.modules(), self.setting):
                    self._add_parts_of(extension)
            return {**self._added, **{name: part for name, part in self._built_in.items() if name not in self._added}}

    def faults(self) -> list[ExtensionFailed]:
        """Return the reasons for which extensions, or parts of them, cannot be used."""
        self.all()
        return [fault for _, fault in self._faults]

    def fault_of(self, extension: str) -> ExtensionFailed | None:
        """Return the first fault of the extension with this name; None without one."""
        self.all()
        return next((fault for name, fault in self._faults if name == extension), None)

    def forget(self) -> None:
        """Remove the added parts. The next use loads the extensions again."""
        with self._loading:
            self._added, self._faults, self._is_loaded = {}, [], False

    def _add_parts_of(self, extension: Extension) -> None:
        """Load an extension, and add its parts. Faults are stored, not raised."""
        try:
            candidates = list(self.candidates(extension, extension.load()))
        except ExtensionFailed as fault:
            self._add_fault(extension, fault)
            return
        for candidate in candidates:
            try:
                name, part = self.make(extension, candidate)
                self.check_name(name)
                self._added[name] = CatalogueEntry(name, ready(part), extension.source)
            except ExtensionFailed as fault:
                self._add_fault(extension, fault)
            except ValueError as error:
                self._add_fault(extension, ExtensionFailed(extension.source, str(error)))

    def _add_fault(self, extension: Extension, fault: ExtensionFailed) -> None:
        logger.error("An extension is left out. %s", fault)
        self._faults.append((extension.name, fault))


def ready(part: T) -> Callable[[], T]:
    """Return a function that returns the part."""
    return lambda: part


def imported(path: str) -> Callable[[], Any]:
    """Return a function that imports a class by its dotted path, and returns an instance of it."""

    def make() -> Any:
        return import_string(path)()

    return make


def _source(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"entry point {entry.group}: {entry.name} = {entry.value}{package}"
