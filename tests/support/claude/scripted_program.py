"""An executable stub of Claude Code that plays a script."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.support.claude import stub_cli


def scripted_program(folder: Path, turns: list[list[dict[str, Any]]] | dict[str, Any]) -> Path:
    """Return the path of an executable file in `folder` that plays the turns; see stub_cli."""
    script, program = folder / "turns.json", folder / "claude"
    script.write_text(json.dumps(turns))
    command = shlex.join([sys.executable, str(Path(stub_cli.__file__)), str(script)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return program
