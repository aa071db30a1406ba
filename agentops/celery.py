"""The Celery application. Tasks are found by autodiscovery; everything else names them by string."""

from __future__ import annotations

import os

from celery import Celery
from kombu.transport.redis import QoS

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")

app = Celery("agentops")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

# A task is a hint, so one that was not acknowledged need not be put back; and putting it back over a connection that
# has just broken raises an AttributeError in kombu, which ends the worker.
QoS.restore_at_shutdown = False
