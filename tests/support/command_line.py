"""The command-line program, and the types of the fixtures that call it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from django.conf import settings

#: Makes 5 model calls and 10 tool calls, then completes.
DEFINITION = {"agent_id": "player", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}
MANAGE = [sys.executable, str(settings.BASE_DIR / "manage.py")]
Command = Callable[..., str]
Process = Callable[[list[str], dict[str, str]], tuple[int, str, str]]
