"""Where the runs of an agent are executed: its queue, its priority there, and its places.

These fields say nothing of what a run does. So runs do not copy them with the definition, and a change makes no new
version: it holds for the runs that wait already, too.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from agentops.projects.errors import InvalidSlug
from agentops.projects.names import MOST_RUNNING, clean_slug

DEFAULT_QUEUE = "default"
#: In the middle of 0, which comes first, to 9.
DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9
#: The queue of messages about the site itself.
RESERVED = "upkeep"
#: The fields of an agent that are its placement.
FIELDS = ("queue", "priority", "max_running")


def valid_slug(text: str) -> str:
    """Return a valid slug. Raise ValueError, as pydantic expects it."""
    try:
        return clean_slug(text)
    except InvalidSlug as error:
        raise ValueError(str(error)) from None


def _queue(name: str) -> str:
    if name == RESERVED:
        raise ValueError(f"the queue {name!r} is reserved for the site itself: choose another name")
    return valid_slug(name)


Queue = Annotated[str, AfterValidator(_queue)]
Priority = Annotated[int, Field(ge=0, le=LAST_PRIORITY)]
Places = Annotated[int, Field(ge=1, le=MOST_RUNNING)]
