"""The Celery application. Tasks are autodiscovered; all other code refers to them by name."""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery
from celery.fixups.django import DjangoWorkerFixup
from django.db import connections
from kombu.entity import Exchange, Queue
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.virtual import QoS

from agentops.base.backing_services import UPKEEP
from agentops.site.bootstep import ClockStep

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
# Celery runs Django's system checks when a worker starts, and discards their results. They import every page, which is
# most of the worker's start-up time. `agentops worker` runs only the relevant check.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

# Replace kombu's own transports under their names, because kombu recognises TLS by the scheme `rediss`.
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), "agentops.base.redis_broker:RedisTransport")
TRANSPORT_ALIASES["memory"] = "agentops.base.memory_broker:MemoryTransport"
_path = sys.path.copy()
app = Celery("agentops")
# Celery's Django fixup puts the working directory first, where a file could shadow a library.
sys.path[:] = _path
app.config_from_object("django.conf:settings", namespace="CELERY")
# The queues of a worker for which none are selected. Their routing keys differ: with the same one, a message would go
# to both queues.
_queues = (app.conf.task_default_queue, UPKEEP)
app.conf.task_queues = [Queue(name, Exchange(name), name) for name in _queues]  # type: ignore[no-untyped-call]
app.autodiscover_tasks()
app.steps["worker"].add(ClockStep)

# The sweep sends a lost message again, so an unacknowledged message need not be restored. Restoring it over a broken
# connection raises an AttributeError in kombu, which ends the worker. See also `ack_emulation` in the settings.
QoS.restore_at_shutdown = False


def _close_own_connections(*_: Any, **__: Any) -> None:
    connections.close_all()


# Celery's fixup would close the connection pool of a forked child at its start, and before and after each task. The
# thread that renews leases uses the pool too, so only the task's own connection is closed. runs/worker/startup.py drops
# inherited connections.
DjangoWorkerFixup._close_database = _close_own_connections
