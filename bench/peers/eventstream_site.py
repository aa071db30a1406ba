"""django-eventstream as documented: the stock view, fed through Redis.

Run as a program, it publishes with `send_event`.
"""

from __future__ import annotations

import json
import os
import time
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import pacing
from django.conf import settings
from django.core.asgi import get_asgi_application

CHANNEL = "bench"


def _redis() -> dict[str, Any]:
    parts = urlsplit(os.environ["BENCH_REDIS_URL"])
    return {"host": parts.hostname, "port": parts.port or 6379, "db": int(parts.path.strip("/") or 0)}


settings.configure(
    SECRET_KEY="for-a-benchmark-on-the-loopback-only",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_eventstream"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    EVENTSTREAM_REDIS=_redis(),
)
application = get_asgi_application()

# These imports need loaded applications.
import django_eventstream  # noqa: E402
from django.urls import include, path  # noqa: E402

urlpatterns = [path("events/", include("django_eventstream.urls"), {"channels": [CHANNEL]})]


def main() -> None:
    def publish(target: str, numbers: range) -> list[int]:
        stamps = []
        for number in numbers:
            event = json.loads(pacing.document(target, number))
            stamps.append(time.monotonic_ns())
            django_eventstream.send_event(CHANNEL, "message", event)
        return stamps

    pacing.serve(f"django-eventstream {version('django-eventstream')}", publish)


if __name__ == "__main__":
    main()
