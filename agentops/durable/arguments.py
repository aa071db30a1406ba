"""The arguments of a step's function: as pages show them, and as a person or a hook may change them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agentops.client import encoding

#: The parameter that gets the idempotency key of the step.
KEY = "idempotency_key"
_Parameter = inspect.Parameter


class Arguments:
    """The arguments of one call of a function."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.function = function
        self._args = args
        self._kwargs = dict(kwargs)
        self._parameters = _parameters_of(function)
        self._by_name = self._named()
        self._shown: dict[str, Any] | None = None

    @property
    def shown(self) -> dict[str, Any]:
        """The arguments by name, as JSON that may be shortened. Values that are not JSON are texts."""
        if self._shown is None:
            self._shown = json.loads(encoding.encode(self._by_name))
        return self._shown

    def call(self, *, key: str | None, changed: Mapping[str, Any] | None) -> Callable[[], Any]:
        """Return the function with its arguments.

        `key`: for a parameter `idempotency_key` that was not given. `changed`: replaces all arguments. An
        argument that equals the shown one keeps its value.
        """
        args, kwargs = self._args, self._kwargs
        if changed is not None:
            values = {
                name: self._by_name[name] if name in self._by_name and value == self.shown.get(name) else value
                for name, value in changed.items()
            }
            args, kwargs = self._in_order(values)
        if key is not None and KEY in self._parameters and KEY not in self._by_name:
            kwargs = {**kwargs, KEY: key}
        return partial(self.function, *args, **kwargs)

    def _named(self) -> dict[str, Any]:
        """Return the arguments by the names of their parameters. Without a signature that fits: `args` and `kwargs`."""
        try:
            bound = inspect.Signature(list(self._parameters.values())).bind_partial(*self._args, **self._kwargs)
        except TypeError:
            return {"args": list(self._args), "kwargs": self._kwargs}
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self._parameters[name].kind is _Parameter.VAR_KEYWORD:
                named |= value
            else:
                named[name] = list(value) if self._parameters[name].kind is _Parameter.VAR_POSITIONAL else value
        return named

    def _in_order(self, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return values by name as positional and keyword arguments."""
        args: list[Any] = []
        kwargs = dict(values)
        for name, parameter in self._parameters.items():
            if name not in kwargs or parameter.kind in (_Parameter.KEYWORD_ONLY, _Parameter.VAR_KEYWORD):
                break
            value = kwargs.pop(name)
            args += value if parameter.kind is _Parameter.VAR_POSITIONAL else [value]
        return tuple(args), kwargs


def _parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        # A function in C without a signature takes anything.
        return inspect.signature(lambda *args, **kwargs: None).parameters
