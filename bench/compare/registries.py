"""How long a system's library has existed, in releases, and whether it exists for another language."""

from __future__ import annotations

import subprocess
import sys

UNKNOWN = "unknown"
TIMEOUT_S = 120


def found_in(registry: str, package: str) -> str:
    """Return the number of releases on PyPI, or the package with its version on npm."""
    if registry == "pypi":
        output = _output([sys.executable, "-m", "pip", "index", "versions", package])
        listed = [line.partition(": ")[2] for line in output.splitlines() if line.startswith("Available versions")]
        return str(len(listed[0].split(", "))) if listed else UNKNOWN
    version = _output(["npm", "view", package, "version"]).strip()
    return f"{package} {version}" if version else UNKNOWN


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
