"""The ASGI entry point: streams are served by timeline.live, everything else by Django."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
django_application = get_asgi_application()

# Only now: it needs the settings and the apps.
from agentops.body_limit import BodyLimit  # noqa: E402
from agentops.one_charset import AsgiRequest  # noqa: E402
from timeline.live.server import LiveServer  # noqa: E402

django_application.request_class = AsgiRequest
application = LiveServer(BodyLimit(django_application))
