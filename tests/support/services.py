"""What tests do without a service, a program or a directory that they need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.paths import ROOT

REQUIRE_SERVICES = os.environ.get("REQUIRE_SERVICES") == "1"


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it if REQUIRE_SERVICES=1."""
    if REQUIRE_SERVICES:
        pytest.fail(f"{what}, and REQUIRE_SERVICES=1 forbids skipping", pytrace=False)
    pytest.skip(what)


#: Recorded material that is not part of the repository. A clone does not have it.
SHARED = ROOT.parent / "shared"
NO_SHARED = "needs the recordings in ../shared, a directory beside the project"
#: True while pytest loads the test modules. tests/support/plugins/summary.py sets it.
is_collecting = False


def shared_directory() -> Path:
    """Return `../shared`, or skip the test if it does not exist.

    Raise RuntimeError while a test module is loaded, because a clone without the directory could not collect the
    module.
    """
    if is_collecting:
        raise RuntimeError("A module looks for ../shared while it is loaded. Look for it within a test or a fixture.")
    if not SHARED.is_dir():
        missing(NO_SHARED)
    return SHARED


def chromium_path() -> str:
    """Return the path of the distribution's Chromium. The headless shell, if installed, is twice as fast."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        missing("there is no Chromium")
    return path
