"""docs/reference/client.md: the classes of agentops.client, from their signatures, docstrings and comments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Container, Iterator
from typing import Any

from pydantic import BaseModel

from agentops import client
from agentops.client import Client, RecordedCall, RecordedRun, Recorder
from agentops.reference.markdown import code, flat, page, table

INTRODUCTION = """\
Everything here is imported from `agentops.client`. [The guide](../guides/client.md) shows how it is used.

`AsyncClient` has the same methods as `Client`: those that return an object are awaited, those that return an iterator
are read with `async for`. A `RunId` is a `UUID`, or its text."""

#: The classes that programs construct. The others are returned by methods.
CONSTRUCTED = (Client, Recorder)
#: A field in the source of a class, and an attribute in the source of a constructor.
_FIELD = re.compile(r"    (?P<name>[a-z_]+): (?P<type>[^=]+?)(?: = .*)?$")
_ATTRIBUTE = re.compile(r"        self\.(?P<name>[a-z][a-z_]*)(?:: [^=]+)? = ")


def client_page() -> str:
    """Return the page: first the classes a program uses, then the returned objects, then the exceptions."""
    classes = [class_section(each) for each in (Client, Recorder, RecordedRun, RecordedCall)]
    exported = [getattr(client, name) for name in client.__all__]
    kinds = [each for each in exported if isinstance(each, type)]
    objects = [_object(cls) for cls in kinds if issubclass(cls, BaseModel)]
    return page("Python client", INTRODUCTION, *classes, "## Objects", *objects, _errors(kinds))


def class_section(cls: type[Any]) -> str:
    """Return the section of a class: its docstring, its attributes, and its methods with their signatures."""
    blocks = [f"## {code(cls.__name__)}", inspect.getdoc(cls)]
    if cls in CONSTRUCTED:
        blocks += [f"`{cls.__name__}{signature_text(cls.__init__)}`", _text(cls.__init__)]
    if issubclass(cls, RecordedRun) and cls is not RecordedRun:
        blocks.append(f"It has the methods of {code(RecordedRun.__name__)}.")
    attributes = [row for row in _attributes(cls) if row[1]] if inspect.isfunction(cls.__init__) else []
    return "\n\n".join(filter(None, [*blocks, table(["Attribute", "Meaning"], attributes), *_members(cls)]))


def _members(cls: type[Any]) -> Iterator[str]:
    """Yield the documentation of each public method and property that the class itself defines."""
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"### {code(f'{cls.__name__}.{name}')}\n\n{_text(member.fget)}"
        elif inspect.isfunction(member):
            yield f"### {code(f'{cls.__name__}.{name}')}\n\n`{name}{signature_text(member)}`\n\n{_text(member)}"


class _Annotation(str):
    """The text of an annotation, which `str(signature)` prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def signature_text(function: Any) -> str:
    """Return the signature as text, such as `(url: str) -> Run`, without `self` and without `-> None`."""
    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=_Annotation(each.annotation))
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    returned = signature.return_annotation
    result = inspect.Signature.empty if returned == "None" else _Annotation(returned)
    return str(signature.replace(parameters=parameters, return_annotation=result))


def _text(documented: Any) -> str:
    return inspect.getdoc(documented) or ""


def _object(cls: type[BaseModel]) -> str:
    base = next((each for each in cls.__bases__ if each.__name__ in client.__all__), None)
    more = f" Has the fields of {code(base.__name__)}, and these:" if base else ""
    rows = table(["Field", "Type", "Meaning"], _fields(cls))
    return f"### {code(cls.__name__)}\n\n{flat(inspect.getdoc(cls))}{more}\n\n{rows}"


def _fields(cls: type[BaseModel]) -> Iterator[list[str]]:
    """Yield the name, the type and the comment of each field that the class itself defines."""
    yield from field_rows(cls, cls.model_fields)


def field_rows(cls: type[Any], names: Container[str]) -> Iterator[list[str]]:
    """Yield the name, the type and the comment of each field with one of these names, from the source of its class."""
    for field, comment in _commented(cls, _FIELD):
        if field["name"] in names:
            yield [code(field["name"]), code(field["type"]), comment]


def _errors(kinds: list[type[Any]]) -> str:
    errors = [cls for cls in kinds if issubclass(cls, Exception)]
    rows = [[code(cls.__name__), code(cls.__bases__[0].__name__), flat(inspect.getdoc(cls))] for cls in errors]
    attributes = _attributes(client.ApiError)
    more = table(["Attribute of `ApiError`", "Meaning"], attributes)
    return "\n\n".join(["## Exceptions", table(["Exception", "Kind of", "Raised for"], rows), more])


def _attributes(cls: type[Any]) -> Iterator[list[str]]:
    """Yield the name and the comment of each public attribute that the constructor sets."""
    for attribute, comment in _commented(cls.__init__, _ATTRIBUTE):
        yield [code(attribute["name"]), comment]


def _commented(code_object: Any, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the match of each line that begins with `pattern`, and the `#:` comment directly above the line."""
    comment: list[str] = []
    for line in inspect.getsource(code_object).splitlines():
        text = line.strip()
        if text.startswith("#: "):
            comment.append(text.removeprefix("#: "))
            continue
        if match := pattern.match(line):
            yield match, " ".join(comment)
        comment = []
