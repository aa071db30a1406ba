"""The contexts of a run's errors: the name of a called tool, or a value of this module."""

from __future__ import annotations

#: A model call that failed before its answer was complete.
LLM_STREAM = "llm_stream"
#: A complete answer that cannot be used.
LLM_COMPLETE = "llm_complete"
#: A run at its step limit.
MAX_TURNS = "max_turns"
#: A step interrupted by an error inside agentops.
STEP = "step"
#: Errors without a row from a failed attempt. Their rows are saved with the move that they cause.
OF_MOVES = frozenset({LLM_COMPLETE, MAX_TURNS})
