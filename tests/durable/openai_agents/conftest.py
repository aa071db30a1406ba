"""The SDK without its exporter of traces, which sends to its vendor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agents import set_tracing_disabled


@pytest.fixture(autouse=True)
def no_tracing() -> Iterator[None]:
    set_tracing_disabled(disabled=True)
    yield
    set_tracing_disabled(disabled=False)
