"""The names and priorities of Celery's queues. It does not import Celery, which most processes load late or never."""

from __future__ import annotations

#: The queue of all tasks that do not execute a run. Each other queue contains runs of the agents that name it.
UPKEEP = "upkeep"
#: The highest priority. Runs have the priority of their agent plus one.
FIRST = 0
PRIORITIES = range(11)
