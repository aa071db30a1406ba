"""The summary of tests that were left out in a clone without ../shared."""

from __future__ import annotations

import pytest

from tests.support import services
from tests.support.plugins.summary import left_out
from tests.support.services import NO_SHARED


def test_tests_without_shared_recordings_are_counted_in_one_sentence() -> None:
    reasons = [f"Skipped: {NO_SHARED}", "Skipped: Redis does not answer", f"Skipped: {NO_SHARED}"]

    assert left_out(reasons).startswith("Left out: 2 tests, each of which needs the recordings in ../shared")


def test_the_summary_is_empty_if_no_test_was_left_out() -> None:
    assert left_out(["Skipped: Redis does not answer"]) == ""


def test_a_module_that_reads_the_recordings_during_import_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "is_collecting", True)

    with pytest.raises(RuntimeError, match="while it is loaded"):
        services.shared_directory()
