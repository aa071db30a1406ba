"""When a failed attempt of a step is repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class RetryPolicy:
    """Repeats the function of a step after an exception, in the same process."""

    #: Maximum number of retries after the first attempt.
    retries: int = 3
    #: Seconds of the first and of the longest pause. Pauses double, with jitter.
    first_s: float = 0.5
    longest_s: float = 60.0
    #: The exceptions after which an attempt is repeated.
    on: tuple[type[Exception], ...] = (Exception,)

    @classmethod
    def of(cls, retries: int | RetryPolicy) -> RetryPolicy:
        """Return a policy, or one with this number of retries."""
        return retries if isinstance(retries, RetryPolicy) else cls(retries)

    def pause_before_retry(self, attempt: int, error: Exception) -> float | None:
        """Return the seconds until the next attempt, or None to give up. `attempt` counts from 0."""
        if attempt >= self.retries or not isinstance(error, self.on):
            return None
        longest = min(self.first_s * (1 << min(attempt, 30)), self.longest_s)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


NO_RETRIES = RetryPolicy(0)
