"""A program with an empty home, and a scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.claude_rig import ClaudeRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ClaudeRig]:
    with ExitStack() as stack:
        yield ClaudeRig(tmp_path, stack)
