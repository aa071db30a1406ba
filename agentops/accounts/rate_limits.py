"""Rate limits of the API for each API key, user, address and run, and their response headers.

agentops.accounts.rate_counter counts the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentops.accounts.access import Principal
from agentops.accounts.requests import network_of_client
from agentops.base.database_clock import clock
from agentops.base.refusals import Refusal

if TYPE_CHECKING:
    from agentops.accounts.rate_counter import Counter, Standing

#: Maximum seconds by which the reported end of a window is too late: the store and each process round it up.
ROUNDING_S = 2
LIMIT, REMAINING, RESET = "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"


class RateLimited(Refusal):
    """The rate limit is exceeded."""

    code = "rate_limited"
    status = 429

    def __init__(self, standing: Standing) -> None:
        super().__init__(
            f"rate limit of {standing.limit:,} per minute exceeded: retry after {standing.reset_s} seconds"
        )
        self.headers = {"Retry-After": str(standing.reset_s)}


def count(request: HttpRequest, kind: str, holder: str, limit: int, *, cost: int = 1) -> Standing | None:
    """Count a request of a holder, or several (`cost`), and return the standing. Raises `RateLimited` above the limit.

    `limit` is per minute; if it is 0, nothing is counted, and the result is None. Of several standings, the request
    keeps the one with the fewest remaining requests, for the headers of the response.
    """
    if not limit:
        return None
    standing = counter_of(settings.REDIS_URL).take(limit, f"{kind}:{holder}", cost)
    lowest: Standing | None = getattr(request, "rate_standing", None)
    if lowest is None or standing.remaining <= lowest.remaining:
        request.rate_standing = standing  # type: ignore[attr-defined]
    if standing.exceeded:
        raise RateLimited(standing)
    return standing


def count_address(request: HttpRequest) -> None:
    """Count a request for the network of its client. Raises `RateLimited`."""
    count(request, "address", network_of_client(request), settings.AGENTOPS_RATE_ADDRESS)


def count_principal(request: HttpRequest, principal: Principal) -> None:
    """Count a request of an API key or a user. Raises `RateLimited`."""
    if principal.key_id is not None:
        count(request, "key", principal.key_id.hex, settings.AGENTOPS_RATE_KEY)
    elif principal.user_id is not None:
        count(request, "user", str(principal.user_id), settings.AGENTOPS_RATE_USER)


def count_ingest(request: HttpRequest, principal: Principal) -> None:
    """Count a request that sends events, of an API key or of all runner secrets together. Raises `RateLimited`."""
    holder = principal.key_id.hex if principal.key_id is not None else principal.actor
    count(request, "ingest", holder, settings.AGENTOPS_RATE_INGEST)


def count_run_events(request: HttpRequest, run: str, events: int) -> None:
    """Count events of a run, identified by any text. Raises `RateLimited`."""
    standing = count(request, "events", run, settings.AGENTOPS_RATE_RUN_EVENTS, cost=events)
    if standing is not None:
        ends: dict[str, float] = request.__dict__.setdefault("event_windows", {})
        ends[run] = clock() + standing.reset_s - ROUNDING_S


def give_back_run_events(request: HttpRequest, run: str, events: int) -> None:
    """Uncount events of a run that this request has counted and then refused, unless their window has ended."""
    ends_at = request.__dict__.get("event_windows", {}).get(run)
    if ends_at is not None:
        counter_of(settings.REDIS_URL).give_back(f"events:{run}", events, ends_at)


def describe(request: HttpRequest, response: HttpResponseBase) -> None:
    """Add headers with the limit that has the fewest remaining requests."""
    standing: Standing | None = getattr(request, "rate_standing", None)
    if standing is not None:
        response.headers[LIMIT] = str(standing.limit)
        response.headers[REMAINING] = str(standing.remaining)
        response.headers[RESET] = str(standing.reset_s)


@lru_cache(maxsize=8)
def counter_of(url: str) -> Counter:
    """Return the counter of this process for the Redis at `url`; without a URL, it counts in memory."""
    # Imported here because the library takes 0.1 seconds to load, and commands do not need it.
    from agentops.accounts.rate_counter import Counter

    return Counter(url)


# --- The middleware ---


class RateLimitHeaders:
    """Add RateLimit headers to responses."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        describe(request, response)
        return response
