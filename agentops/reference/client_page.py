"""docs/reference/client.md: the classes of agentops.client, from their signatures, docstrings and comments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from agentops import client
from agentops.client import Client, RecordedCall, RecordedRun, Recorder
from agentops.reference.markdown import code, flat, page, table

INTRODUCTION = """\
Everything here is imported from `agentops.client`. [The guide](../guides/client.md) shows how it is used.

`AsyncClient` has the same methods as `Client`: those that return an object are awaited, those that return an iterator
are read with `async for`. A `RunId` is a `UUID`, or its text."""

CONSTRUCTED = (Client, Recorder)
DESCRIBED = (RecordedRun,)
_FIELD = re.compile(r"    (?P<name>[a-z_]+): (?P<type>[^=]+?)(?: = .*)?$")


def client_page() -> str:
    """Return the page: first the classes a program uses, then the returned objects, then the exceptions."""
    classes = [_class(Client), _class(Recorder), _class(RecordedRun), _class(RecordedCall)]
    exported = [getattr(client, name) for name in client.__all__]
    kinds = [each for each in exported if isinstance(each, type)]
    objects = [_object(cls) for cls in kinds if issubclass(cls, BaseModel)]
    return page("Python client", INTRODUCTION, *classes, "## Objects", *objects, _errors(kinds))


def _class(cls: type[Any]) -> str:
    """Return the section of a class. Classes that methods return have no constructor to document."""
    blocks = [f"## {code(cls.__name__)}", inspect.getdoc(cls)]
    if cls in CONSTRUCTED:
        blocks += [f"`{cls.__name__}{_signature(cls.__init__)}`", _text(cls.__init__)]
    if cls.__bases__[0] in DESCRIBED:
        blocks.append(f"It has the methods of {code(cls.__bases__[0].__name__)}.")
    attributes = [row for row in _attributes(cls) if row[1]]
    return "\n\n".join(filter(None, [*blocks, table(["Attribute", "Meaning"], attributes), *_members(cls)]))


def _members(cls: type[Any]) -> Iterator[str]:
    """Yield the documentation of each public method and property that the class itself defines."""
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"### {code(f'{cls.__name__}.{name}')}\n\n{_text(member.fget)}"
        elif inspect.isfunction(member):
            yield f"### {code(f'{cls.__name__}.{name}')}\n\n`{name}{_signature(member)}`\n\n{_text(member)}"


class _Annotation(str):
    """An annotation, which is already text and needs no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(function: Any) -> str:
    """Return the parameters and the type of the result, without `self`."""
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
    comment: list[str] = []
    for line in inspect.getsource(cls).splitlines():
        field = _FIELD.match(line)
        if line.startswith("    #: "):
            comment.append(line.removeprefix("    #: "))
        elif field is not None and field["name"] in cls.model_fields:
            yield [code(field["name"]), code(field["type"]), " ".join(comment)]
            comment = []


def _errors(kinds: list[type[Any]]) -> str:
    errors = [cls for cls in kinds if issubclass(cls, Exception)]
    rows = [[code(cls.__name__), code(cls.__bases__[0].__name__), flat(inspect.getdoc(cls))] for cls in errors]
    attributes = _attributes(client.ApiError)
    more = table(["Attribute of `ApiError`", "Meaning"], attributes)
    return "\n\n".join(["## Exceptions", table(["Exception", "Kind of", "Raised for"], rows), more])


def _attributes(cls: type[Any]) -> Iterator[list[str]]:
    """Yield the name and the comment of each public attribute that the constructor sets."""
    comment = ""
    for line in map(str.strip, inspect.getsource(cls.__init__).splitlines()):
        assigned = re.match(r"self\.([a-z][a-z_]*)(?:: [^=]+)? = ", line)
        if assigned is not None:
            yield [code(assigned[1]), comment]
        comment = line.removeprefix("#: ") if line.startswith("#: ") else ""
