"""Says at the end of a run what was left out for want of ../shared, which no clone has.

A plugin of the suite (tests/conftest.py names it).
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.services import NO_SHARED


def left_out(reasons: Iterable[str]) -> str:
    """Return one sentence on the tests that were skipped for want of ../shared; empty where none was."""
    count = sum(NO_SHARED in reason for reason in reasons)
    return f"Left out: {count} tests, each of which {NO_SHARED}; all others do without." if count else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    if sentence := left_out(str(report.longrepr) for report in skipped):
        terminalreporter.write_line(sentence, yellow=True)
