"""A process that appends events to a run at a given pace.

By default it repeats a small event. With the argument "steps" it appends the events of bench/long_run.py.
"""

from __future__ import annotations

import sys
import time
from uuid import UUID

import django

from bench.peers import pacing


def main() -> None:
    django.setup()
    from django.db import transaction

    from bench import long_run
    from timeline import log
    from timeline.log import Entry
    from timeline.models import Source

    def tick(number: int) -> Entry:
        return Entry(pacing.payload(number), pacing.TYPE)

    entry = long_run.entry if sys.argv[1:] == ["steps"] else tick

    def publish(target: str, numbers: range) -> list[int]:
        committed: list[int] = []
        entries = [entry(number) for number in numbers]
        with transaction.atomic():
            # Registered before the append registers its notification, so that it runs between commit and notification.
            transaction.on_commit(lambda: committed.append(time.monotonic_ns()))
            log.append(UUID(target), entries, source=Source.INGEST)
        return committed * len(numbers)

    pacing.serve("agentops", publish)


if __name__ == "__main__":
    main()
