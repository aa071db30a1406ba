"""Texts that agent programs add to a conversation as messages of their user."""

from __future__ import annotations

#: How they begin, by what Codex and Claude Code write.
_BEGINNINGS = (
    *("<environment_context>", "<user_instructions>", "<permissions instructions>", "<turn_aborted>"),
    *("# AGENTS.md instructions", "<local-command-", "<command-name>", "<command-message>", "<system-reminder>"),
)


def is_of_program(text: str) -> bool:
    """Whether a message of the user was written by the program, so that it says nothing about what the run is for."""
    return text.lstrip().startswith(_BEGINNINGS)
