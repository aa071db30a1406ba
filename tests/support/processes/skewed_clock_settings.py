"""The settings of a worker whose clock is wrong, by as many seconds as TEST_SKEW_S says."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import time_machine

from tests.support.processes.scripted_settings import *  # noqa: F403

# To the end of the process. The database has a clock of its own: the server's, or that of SQLite's library.
time_machine.travel(datetime.now(UTC) + timedelta(seconds=float(os.environ["TEST_SKEW_S"]))).start()
