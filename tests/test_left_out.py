"""The summary of tests that were left out in a clone without ../shared."""

from __future__ import annotations

import pytest

from tests.support import machine
from tests.support.machine import NO_SHARED
from tests.support.second_pass import left_out


def test_tests_without_shared_recordings_are_counted_in_one_sentence() -> None:
    reasons = [f"Skipped: {NO_SHARED}", "Skipped: Redis does not answer", f"Skipped: {NO_SHARED}"]

    assert left_out(reasons).startswith("Left out: 2 tests, each of which needs the recordings in ../shared")


def test_the_summary_is_empty_if_no_test_was_left_out() -> None:
    assert left_out(["Skipped: Redis does not answer"]) == ""


def test_a_module_that_reads_the_recordings_during_import_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_collecting", True)

    with pytest.raises(RuntimeError, match="while it is loaded"):
        machine.shared_directory()
