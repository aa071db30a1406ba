"""docker-compose.yml as the tests read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "docker-compose.yml"
#: The services that run our image.
OURS = ["migrate", "web", "stream", "worker", "beat"]
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)")


def parsed() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text()))


def service(name: str) -> dict[str, Any]:
    return dict(parsed()["services"][name])
