"""The provider that agents name. A worker binds it to a run, and gets a provider that holds the run's session."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from pydantic_ai.models import StreamedResponse

from runs.providers.base import FollowUp, ModelCall, ProviderUnusable
from runs.providers.claude_cli import program_command


class ClaudeCliProvider:
    """Sessions of Claude Code. The program runs its built-in tools; the model is the program's, or "default"."""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        program_command.check(model, settings)

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        raise ProviderUnusable("a session of claude_cli belongs to a run: see runs.engine.sessions.held_session")

    def context_window(self, model: str) -> int | None:
        return None  # the program compacts its context itself

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        return FollowUp()
