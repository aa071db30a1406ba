"""Exempts objects that live as long as the process from garbage collection: modules, and the collected tests.

A plugin of the suite (tests/conftest.py names it, and has disabled the collector). Scanning these objects again and
again takes a third of the time of collecting tests, and a tenth of the time of running them.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests, then enable the garbage collector for later objects."""
    result = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result
