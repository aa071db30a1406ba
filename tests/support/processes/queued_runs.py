"""A program that starts runs of one agent one after the other, and sends their messages.

Run by test_ten_thousand_runs.py: `python -m tests.support.processes.queued_runs AGENT_ID COUNT`.
"""

from __future__ import annotations

import sys
from uuid import UUID

import django


def main(agent_id: UUID, count: int) -> None:
    from runs.lifecycle import creation
    from runs.models import Agent

    agent = Agent.objects.select_related("project").get(pk=agent_id)
    for number in range(count):
        creation.create(agent.project, agent, f"Go {number}.", by="test")


if __name__ == "__main__":
    django.setup()
    main(UUID(sys.argv[1]), int(sys.argv[2]))
