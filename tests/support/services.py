"""What a test does when a service, a program or a directory that it needs is missing."""

from __future__ import annotations

import os

import pytest

REQUIRE_SERVICES = os.environ.get("REQUIRE_SERVICES") == "1"


def missing(what: str) -> None:
    """Skip the test; fail it where REQUIRE_SERVICES=1 says that nothing may be missing."""
    if REQUIRE_SERVICES:
        pytest.fail(f"{what}, and REQUIRE_SERVICES=1 forbids skipping", pytrace=False)
    pytest.skip(what)
