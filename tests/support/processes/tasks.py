"""Celery tasks of workers under test. Celery finds them by the name of this module."""

from __future__ import annotations

import time

from celery import shared_task
from django.conf import settings


@shared_task(name="tests.hold")
def hold() -> None:
    """Block a Celery thread. Creates the file `held` in the worker's home, and waits for the file `let_go`."""
    (settings.AGENTOPS_HOME / "held").touch()
    while not (settings.AGENTOPS_HOME / "let_go").exists():
        time.sleep(0.02)
