"""Settings of a process under test: the product's settings, plus the scripted model and ledger tools as an app.

Variables of the environment add more:

- TEST_SKEW_S shifts the clock by this number of seconds.
- FLOW_SABOTAGE switches off one protection of flow runs, and TEST_UNWATCHED_ACCESS the periodic check of access to
  streams: see sabotage.py.
- TEST_COMPONENTS serves the page of components too: see `make components`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agentops.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.support.scripted_model.ScriptedConfig"]  # noqa: F405
if "FLOW_SABOTAGE" in os.environ:
    INSTALLED_APPS += ["tests.support.sabotage.FlowSabotageConfig"]
if "TEST_UNWATCHED_ACCESS" in os.environ:
    INSTALLED_APPS += ["tests.support.sabotage.UnwatchedConfig"]
if "TEST_COMPONENTS" in os.environ:
    ROOT_URLCONF = "tests.support.component_page"
    TEMPLATES[0]["DIRS"].append(Path(__file__).parent / "components/templates")  # noqa: F405
if "TEST_SKEW_S" in os.environ:
    import time_machine

    # Until the process ends. The database reads another clock: the server's, or that of SQLite's library.
    time_machine.travel(datetime.now(UTC) + timedelta(seconds=float(os.environ["TEST_SKEW_S"]))).start()
