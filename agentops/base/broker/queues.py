"""The names and priorities of Celery's queues. In a module without Celery, which most processes load late or never."""

from __future__ import annotations

#: The queue of all tasks that drive no run. Each other queue holds the runs of agents that name it.
UPKEEP = "upkeep"
#: The priority that comes first. Those of runs are one more than the agent's.
FIRST = 0
PRIORITIES = range(11)
