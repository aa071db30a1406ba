"""django-eventstream as documented: the stock view, fed through Redis.

With BENCH_EVENTSTREAM_DATABASE it also stores the events there (DjangoModelStorage), which replay requires. Run as a
program, it publishes with `send_event`.
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


def _storage() -> dict[str, Any]:
    url = os.environ.get("BENCH_EVENTSTREAM_DATABASE")
    if not url:
        return {}
    parts = urlsplit(url)
    return {
        "EVENTSTREAM_STORAGE_CLASS": "django_eventstream.storage.DjangoModelStorage",
        "DATABASES": {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": parts.hostname,
                "PORT": parts.port or 5432,
                "USER": parts.username,
                "PASSWORD": parts.password or "",
                "NAME": parts.path.strip("/"),
            }
        },
    }


settings.configure(
    SECRET_KEY="for-a-benchmark-on-the-loopback-only",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_eventstream"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    EVENTSTREAM_REDIS=_redis(),
    **_storage(),
)
application = get_asgi_application()

# These imports need loaded applications.
import django_eventstream  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.urls import include, path  # noqa: E402

urlpatterns = [path("events/", include("django_eventstream.urls"), {"channels": [CHANNEL]})]


def main() -> None:
    if "DATABASES" in _storage():
        call_command("migrate", verbosity=0)

    def publish(target: str, numbers: range) -> list[pacing.Stamp]:
        stamps = []
        for number in numbers:
            event = json.loads(pacing.document(target, number))
            began = time.monotonic_ns()
            django_eventstream.send_event(CHANNEL, "message", event)
            stamps.append((began, began))
        return stamps

    pacing.serve(f"django-eventstream {version('django-eventstream')}", publish)


if __name__ == "__main__":
    main()
