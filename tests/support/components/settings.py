"""The settings of a site that serves the page of components too: see `make components`."""

from __future__ import annotations

from pathlib import Path

from agentops.settings import *  # noqa: F403

ROOT_URLCONF = "tests.support.components.urls"
TEMPLATES[0]["DIRS"].append(Path(__file__).with_name("templates"))  # noqa: F405
