"""What a test does when a service, a program or a directory that it needs is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.paths import ROOT

REQUIRE_SERVICES = os.environ.get("REQUIRE_SERVICES") == "1"


def missing(what: str) -> NoReturn:
    """Skip the test; fail it where REQUIRE_SERVICES=1 says that nothing may be missing."""
    if REQUIRE_SERVICES:
        pytest.fail(f"{what}, and REQUIRE_SERVICES=1 forbids skipping", pytrace=False)
    pytest.skip(what)


#: Recorded material that is not part of the project. A clone has none.
SHARED = ROOT.parent / "shared"
NO_SHARED = "needs the recordings in ../shared, a directory beside the project"
#: Whether pytest loads the test modules. tests/support/plugins/summary.py sets it.
is_collecting = False


def shared_directory() -> Path:
    """Return the directory `shared` beside the project, or skip the test.

    Raises RuntimeError while a test module is loaded: a clone without the directory could not collect the module.
    """
    if is_collecting:
        raise RuntimeError("A module looks for ../shared while it is loaded. Look for it within a test or a fixture.")
    if not SHARED.is_dir():
        missing(NO_SHARED)
    return SHARED


def chromium_path() -> str:
    """Return the path of the distribution's Chromium. The build without a window, if installed, takes half the time."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        missing("there is no Chromium")
    return path
