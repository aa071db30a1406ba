"""A pytest plugin for the gate, whose machine may be busy: a test that waits for real processes is looked at twice.

`-p` with the name of this module loads it; a developer's run does without. What failed at first is named in the
summary, and more than a few of them fail the run: then it is not the machine.
"""

from __future__ import annotations

import pytest

from tests.support.paths import ROOT

#: Where servers, workers and browsers are processes of their own.
PROCESSES = {ROOT / "tests" / name for name in ("browser", "chaos", "live", "processes", "restore", "scale")}
MOST = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("bench") or not PROCESSES.isdisjoint(item.path.parents):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell why the first try failed: most of such failures cannot be seen again."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.line(report.longreprtext)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = len(reporter.stats.get("rerun", ())) if reporter else 0
    if reporter and again > MOST:
        reporter.write_line(f"{again} tests had to be looked at twice; {MOST} may.", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
