"""Reports at the end of a run how many tests were skipped because ../shared is missing, as in every clone.

A plugin of the suite (tests/conftest.py names it). It also fails a module that cannot be collected without the
directory.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

import pytest

from tests.support import services
from tests.support.services import NO_SHARED


def left_out(reasons: Iterable[str]) -> str:
    """Return one sentence on the tests that were skipped without ../shared. Empty without such tests."""
    count = sum(NO_SHARED in reason for reason in reasons)
    return f"Left out: {count} tests, each of which {NO_SHARED}; all others do without." if count else ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    services.is_collecting = True
    try:
        return (yield)
    finally:
        services.is_collecting = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    if sentence := left_out(str(report.longrepr) for report in skipped):
        terminalreporter.write_line(sentence, yellow=True)
