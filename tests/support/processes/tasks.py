"""Celery tasks of workers under test: Celery finds them by the name of this module."""

from __future__ import annotations

import time
from pathlib import Path

from celery import shared_task


@shared_task(name="tests.hold")
def hold(directory: str) -> None:
    """Keep a thread of Celery busy: from when `held` is in the directory until `let_go` is."""
    Path(directory, "held").touch()
    while not Path(directory, "let_go").exists():
        time.sleep(0.02)
