"""Housekeeping beside the runs: once a day the worker that looks first applies the retention. Needs no beat.

May import state and the engine's drive.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import closing

from django.db import Error, connection

from runs import retention
from runs.engine.drive import Stopping

log = logging.getLogger(__name__)
#: The first look comes soon, because some sites are up for an hour a day.
FIRST_S, EVERY_S = 60.0, 3600.0


def tidy(stopping: Stopping) -> None:
    """Look every hour, until the process is told to end. What is wrong here must not end a worker."""
    wait = FIRST_S
    while not stopping.asked.wait(wait * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load only
        wait = EVERY_S
        try:
            _apply_retention(stopping)
        except Error as error:
            log.warning("the retention cannot use the database: %s", type(error).__name__)
        except Exception:
            log.exception("the retention failed")
        finally:
            connection.close()


def _apply_retention(stopping: Stopping) -> None:
    began = time.monotonic()
    with closing(retention.daily()) as removal:
        for _ in removal:
            # As much rest as work: runs that are driven need the database too.
            if stopping.asked.wait(time.monotonic() - began):
                return
            began = time.monotonic()
