"""docker-compose.yml as the tests read it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support.paths import ROOT

FILE = ROOT / "docker-compose.yml"
#: The services that run the image of agentops.
OURS = ["migrate", "web", "stream", "worker", "beat"]
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)")


def parsed() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text()))


def service(name: str) -> dict[str, Any]:
    return dict(parsed()["services"][name])


def variables() -> dict[str, str]:
    """Return the variables that .env.example sets."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))


def value(text: object) -> str:
    """Replace the variables in a text of the compose file, as Docker does with .env.example."""
    pattern = r"(?<!\$)\$\{([A-Z_]+):([-+])([^}]*)\}"
    return re.sub(pattern, _replaced, str(text)).replace("$$", "$")


def _replaced(found: re.Match[str]) -> str:
    name, operator, word = found.groups()
    own = variables().get(name)
    return (own or word) if operator == "-" else (word if own else "")
