"""Where the runs of an agent are executed: its queue, its priority there, and its places.

These fields say nothing of what a run does. So runs do not copy them with the definition, and a change makes no new
version: it holds for the runs that wait already, too.
"""

from __future__ import annotations

DEFAULT_QUEUE = "default"
#: In the middle of 0, which comes first, to 9.
DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9
#: The queue of messages about the site itself.
RESERVED = "upkeep"
#: The fields of an agent that are its placement.
FIELDS = ("queue", "priority", "max_running")
