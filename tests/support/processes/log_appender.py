"""A program that appends events to a log, in batches of mixed size. Some event IDs repeat.

Run by test_log_race.py: `appender.py LOG COUNT NAME`. Prints how many of its events were new.
"""

from __future__ import annotations

import random
import sys
from uuid import UUID

import django


def main(log_id: UUID, count: int, name: str) -> int:
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


if __name__ == "__main__":
    django.setup()
    print(main(UUID(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
