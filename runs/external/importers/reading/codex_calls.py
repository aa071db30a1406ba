"""Names the model calls in a Codex rollout by the thread and the total of tokens it has used until the call.

Not all versions have response IDs. The total of a thread only grows, or restarts from zero. The history at the
beginning of another rollout has the same totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runs.external.importers.answer_events import event_id
from runs.external.reported_usage import count_of

_TOTALS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens", "total_tokens")


class CallNames:
    """Names the calls of a rollout in order."""

    def __init__(self, thread_ids: Sequence[str]) -> None:
        """Create it. `thread_ids`: the thread, and the thread whose history it begins with, if any."""
        self._thread_ids = thread_ids
        self._total: tuple[int, ...] = (0,) * len(_TOTALS)
        #: How often the total has restarted.
        self._resets = 0

    def next(self, info: Mapping[str, Any], *, is_copied: bool) -> tuple[str, ...]:
        """Return the names of the call that a count belongs to; none if the count has no number of tokens.

        `is_copied`: the count is part of the history.
        """
        total = _counts(info.get("total_token_usage"))
        if total is None:
            last = _counts(info.get("last_token_usage"))
            if last is None:
                return ()
            total = tuple(map(sum, zip(self._total, last, strict=True)))
        if any(now < before for now, before in zip(total, self._total, strict=True)):
            self._resets += 1
        self._total = total
        place = ".".join(map(str, total)) + (f"/{self._resets}" if self._resets else "")
        threads = reversed(self._thread_ids) if is_copied else self._thread_ids[:1]
        return tuple(event_id(f"codex:{thread_id}:{place}") for thread_id in threads)


def _counts(usage: object) -> tuple[int, ...] | None:
    """Return the counts of a usage, with 0 for missing ones; None if no count is readable."""
    counts = [count_of(usage.get(name)) for name in _TOTALS] if isinstance(usage, Mapping) else []
    return tuple(count or 0 for count in counts) if any(count is not None for count in counts) else None
