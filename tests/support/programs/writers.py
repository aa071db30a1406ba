"""Programs that write rows beside a test: `python -m tests.support.programs.writers KIND ARGUMENT…`.

- `bursts LOG COUNT SECONDS SEED` appends events to a log in bursts, with pauses between them.
- `batches LOG COUNT NAME` appends batches of mixed size. Some event IDs repeat. Prints how many events were new.
- `runs AGENT_ID COUNT` starts runs of one agent one after the other, and sends their messages.
"""

from __future__ import annotations

import random
import sys
import time
from uuid import UUID

import django


def append_bursts(log_id: UUID, count: int, seconds: float, seed: int) -> None:
    from django.db import transaction

    from timeline import log
    from timeline.log import Entry
    from timeline.models import Source

    dice, made, began = random.Random(seed), 0, time.monotonic()
    while made < count:
        size = min(dice.choice([1, 1, 1, 5, 20, 100]), count - made)
        entries = [Entry({"n": made + place}, type="x.test") for place in range(size)]
        with transaction.atomic():
            log.append(log_id, entries, source=Source.INGEST)
        made += size
        # Follow the overall schedule, so that a slow database shortens the pauses and not the test takes longer.
        time.sleep(max(0.0, began + seconds * made / count - time.monotonic()))


def append_batches(log_id: UUID, count: int, name: str) -> int:
    from django.db import transaction

    from timeline import log
    from timeline.log import Entry
    from timeline.models import Source

    dice = random.Random(name)
    new = made = 0
    while made < count:
        size = min(dice.choice([1, 1, 2, 5, 20, 60]), count - made)
        entries = [
            Entry({"n": made + place}, type="x.test", event_id=_id(dice, name, made + place)) for place in range(size)
        ]
        with transaction.atomic():
            new += sum(not each.duplicate for each in log.append(log_id, entries, source=Source.INGEST))
        made += size
    return new


def _id(dice: random.Random, name: str, number: int) -> str | None:
    """Return an event ID or, mostly, None. The ID is new, repeated, or shared with the other appender."""
    kind = dice.randrange(20)
    if kind == 0:
        return f"{name}-{number}"
    if kind == 1:
        return f"{name}-{dice.randrange(number + 1)}"
    return f"shared-{dice.randrange(200)}" if kind == 2 else None


def start_runs(agent_id: UUID, count: int) -> None:
    from runs.lifecycle import creation
    from runs.models import Agent

    agent = Agent.objects.select_related("project").get(pk=agent_id)
    for number in range(count):
        creation.create(agent.project, agent, f"Go {number}.", by="test")


if __name__ == "__main__":
    django.setup()
    kind, row_id, count, *more = sys.argv[1:]
    if kind == "bursts":
        append_bursts(UUID(row_id), int(count), float(more[0]), int(more[1]))
    elif kind == "batches":
        print(append_batches(UUID(row_id), int(count), more[0]))
    else:
        start_runs(UUID(row_id), int(count))
