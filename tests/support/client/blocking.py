"""The asynchronous client behind a synchronous interface, so that one test covers both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

from agentops.client import AsyncClient


class Blocking:
    """Runs each coroutine of an `AsyncClient`, and each step of its iterators, in a private event loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*args, **options)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        return self._blocking(attribute) if callable(attribute) else attribute

    def _blocking(self, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            if inspect.isasyncgen(result):
                return self._each(result)
            return self._runner.run(result) if inspect.iscoroutine(result) else result

        return call

    def _each(self, rows: AsyncGenerator[Any, None]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._runner.run(anext(rows))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(rows.aclose())

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()
