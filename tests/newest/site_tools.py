"""The tools of the site's own agents, which do the same task as the client programs."""

from __future__ import annotations

from agentops.tools import tool
from tests.newest.programs import task


@tool(effect="read")
def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return task.get_weather(city)


@tool(effect="read")
def get_time(zone: str) -> str:
    """Return the time in a time zone."""
    return task.get_time(zone)
