"""How often the API may be asked: limits for an API key, a person and an address, and what an answer says of them.

The counting itself is in request_counter.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentops.projects.access import Principal
from agentops.projects.errors import AccessError

if TYPE_CHECKING:
    from agentops.projects.rate_limits.counter import Counter

LIMIT, REMAINING, RESET = "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"
#: One customer's network has so many addresses: they count as one.
IPV6_NETWORK = 64


class RateLimited(AccessError):
    code = "rate_limited"
    status = 429

    def __init__(self, standing: Standing) -> None:
        super().__init__(
            f"more than {standing.limit:,} requests in a minute: wait {standing.reset_s} seconds, then go on"
        )
        self.headers = {"Retry-After": str(standing.reset_s)}


@dataclass(frozen=True, slots=True)
class Standing:
    """Where somebody stands after a request."""

    limit: int
    #: Requests that they have left in this window.
    remaining: int
    #: Until the window ends.
    reset_s: int
    #: This request was one too many.
    exceeded: bool = False


def count(request: HttpRequest, kind: str, holder: str, limit: int) -> None:
    """Count a request of `holder` (unlimited where `limit` is 0); raises RateLimited where it is one too many."""
    if not limit:
        return
    standing = counter_of(settings.REDIS_URL).take(limit, f"{kind}:{holder}")
    said: Standing | None = getattr(request, "rate_standing", None)
    if said is None or standing.remaining <= said.remaining:
        request.rate_standing = standing  # type: ignore[attr-defined]
    if standing.exceeded:
        raise RateLimited(standing)


def count_address(request: HttpRequest) -> None:
    count(request, "address", network_of(request.META.get("REMOTE_ADDR") or ""), settings.AGENTOPS_RATE_ADDRESS)


def count_principal(request: HttpRequest, principal: Principal) -> None:
    if principal.key_id is not None:
        count(request, "key", principal.key_id.hex, settings.AGENTOPS_RATE_KEY)
    elif principal.user_id is not None:
        count(request, "user", str(principal.user_id), settings.AGENTOPS_RATE_USER)


def describe(request: HttpRequest, response: HttpResponseBase) -> None:
    """Put the limit that is nearest to being used up into the headers of an answer."""
    standing: Standing | None = getattr(request, "rate_standing", None)
    if standing is not None:
        response.headers[LIMIT] = str(standing.limit)
        response.headers[REMAINING] = str(standing.remaining)
        response.headers[RESET] = str(standing.reset_s)


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The address as it is counted; of IPv6 its network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_NETWORK), strict=False))


@lru_cache(maxsize=8)
def counter_of(url: str) -> Counter:
    """Return the counter of this process for the Redis at `url`; '' counts in this process alone."""
    # Only now: the library takes a tenth of a second to load, and commands count nothing.
    from agentops.projects.rate_limits.counter import Counter

    return Counter(url)
