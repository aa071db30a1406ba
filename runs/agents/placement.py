"""The placement of an agent's runs: its queue, its priority in the queue, and its concurrency limit.

Placement does not affect the work of a run. So runs do not copy it with the definition, and a change creates no new
version: it also applies to waiting runs.
"""

from __future__ import annotations

DEFAULT_QUEUE = "default"
#: The middle of the range from 0, the highest priority, to 9.
DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9
#: The queue of messages about the site itself.
RESERVED = "upkeep"
#: The placement fields of an agent.
FIELDS = ("queue", "priority", "max_running")
