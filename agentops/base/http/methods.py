"""Django's decorators for the methods of a view. These also store the methods in `view.methods`.

With them, `agentops.base.http.middleware.Methods` refuses other methods before authentication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.views.decorators import http

V = TypeVar("V", bound=Callable[..., Any])


def require_http_methods(methods: Iterable[str]) -> Callable[[V], V]:
    allowed = tuple(methods)

    def decorate(view: V) -> V:
        checked: Any = http.require_http_methods(list(allowed))(view)
        checked.methods = allowed
        return checked  # type: ignore[no-any-return]

    return decorate


require_safe = require_http_methods(["GET", "HEAD"])
require_GET = require_http_methods(["GET"])
require_POST = require_http_methods(["POST"])
