"""A program that appends events to a log in bursts, with pauses between them.

Run by test_crowd.py: `python -m tests.support.processes.event_bursts LOG COUNT SECONDS SEED`.
"""

from __future__ import annotations

import random
import sys
import time
from uuid import UUID

import django


def main(log_id: UUID, count: int, seconds: float, seed: int) -> None:
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


if __name__ == "__main__":
    django.setup()
    main(UUID(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
