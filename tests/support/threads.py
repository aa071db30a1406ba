"""Several threads that call the same function at the same time. May import Django."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection


def at_once(act: Callable[[int], Any], count: int) -> list[Any]:
    """Return the results of `act` in `count` threads, numbered from 0. Each thread closes its connection."""

    def acting(number: int) -> Any:
        try:
            return act(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(acting, range(count)))
