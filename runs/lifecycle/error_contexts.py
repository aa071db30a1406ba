"""What the errors of a run are about: the tool of a call, by its name, or one of these."""

from __future__ import annotations

#: A model call that failed before its answer was complete.
LLM_STREAM = "llm_stream"
#: A complete answer that cannot be used.
LLM_COMPLETE = "llm_complete"
#: A run at its step limit.
MAX_TURNS = "max_turns"
#: A step that an error inside agentops has interrupted.
STEP = "step"
#: Errors that no failed attempt has a row of: they get theirs with the move that they cause.
OF_MOVES = frozenset({LLM_COMPLETE, MAX_TURNS})
