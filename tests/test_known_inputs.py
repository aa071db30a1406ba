"""The seeds of the fuzz targets, and inputs found by fuzzing: all pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fuzz_targets import TARGETS, write_seeds
from tests.support.machine import ROOT, SHARED, shared_directory
from tests.support.recordings import OWN

KNOWN = sorted(path for path in (ROOT / "tests/support/fuzz/known").rglob("*") if path.is_file())


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_input_that_once_failed_passes(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_all_seeds_pass(tmp_path: Path) -> None:
    for target, directory in write_seeds(tmp_path, (shared_directory() / "data" if SHARED.is_dir() else OWN)).items():
        for path in directory.iterdir():
            TARGETS[target](path.read_bytes())
