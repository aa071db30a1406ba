"""A pytest plugin for CI, whose machine may be slow: a failed test of real processes runs again.

`-p` with the name of this module loads it; a local run does without. The summary names the tests whose first try
failed. More than `MOST` of them fail the run, because the machine is then not the cause.
"""

from __future__ import annotations

import pytest

from tests.support.machine import ROOT

#: Directories of tests that start servers, workers and browsers as separate processes.
PROCESSES = {ROOT / "tests" / name for name in ("browser", "chaos", "live", "processes", "restore", "scale")}
MOST = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("bench") or not PROCESSES.isdisjoint(item.path.parents):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why the first try failed, because most such failures cannot be reproduced."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.line(report.longreprtext)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = len(reporter.stats.get("rerun", ())) if reporter else 0
    if reporter and again > MOST:
        reporter.write_line(f"{again} tests had to be looked at twice; {MOST} may.", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
