"""Leaves out of garbage collection what lives as long as the process: modules, and the collected tests.

A plugin of the suite (tests/conftest.py names it, and has switched the collector off). Looking through them again and
again takes a third of the time of collecting tests, and a tenth of that of running them.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests, then let the collector work on what comes after them."""
    result = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result
