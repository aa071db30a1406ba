"""The Celery application. Tasks are found by autodiscovery; everything else names them by string."""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery
from celery.fixups.django import DjangoWorkerFixup
from django.db import connections
from kombu.transport.redis import QoS

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")

_path = sys.path.copy()
app = Celery("agentops")
# Celery's part for Django puts the working directory first: a file there would be imported in place of a library.
sys.path[:] = _path
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

# A task is a hint, so one that was not acknowledged need not be put back; and putting it back over a connection that
# has just broken raises an AttributeError in kombu, which ends the worker.
QoS.restore_at_shutdown = False


def _close_own_connections(*_: Any, **__: Any) -> None:
    connections.close_all()


# Before and after each task Celery closes the pool of a forked child, which the threads that drive runs there use too.
# The task's own connection is what is to be closed. A fork drops what it has inherited by another way than this one.
DjangoWorkerFixup.close_database = _close_own_connections
