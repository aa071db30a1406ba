"""Settings of a worker whose clock is off by TEST_SKEW_S seconds."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import time_machine

from tests.support.processes.scripted_settings import *  # noqa: F403

# Until the process ends. The database reads another clock: the server's, or that of SQLite's library.
time_machine.travel(datetime.now(UTC) + timedelta(seconds=float(os.environ["TEST_SKEW_S"]))).start()
