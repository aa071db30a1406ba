"""The placement of an agent's runs: its queue, its priority in the queue, and its concurrency limit.

The placement does not affect what a run does. Therefore runs do not copy it with the definition, and a change creates
no new version of the agent: it applies to queued runs, too.
"""

from __future__ import annotations

DEFAULT_QUEUE = "default"
#: The middle of the range from 0, the highest priority, to 9.
DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9
#: The queue of the tasks that maintain the site. Agents cannot use it.
RESERVED = "upkeep"
#: The placement fields of an agent.
FIELDS = ("queue", "priority", "max_running")
