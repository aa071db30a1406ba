"""The WSGI entry point: pages and API at scale. Streams need the ASGI one."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
django_application = get_wsgi_application()

# Only now: they need the settings.
from django.conf import settings  # noqa: E402
from granian.utils.proxies import wrap_wsgi_with_proxy_headers  # noqa: E402

from agentops.chunked import ChunkedBodies  # noqa: E402
from agentops.one_charset import WsgiRequest  # noqa: E402

django_application.request_class = WsgiRequest
application = wrap_wsgi_with_proxy_headers(ChunkedBodies(django_application), settings.FORWARDED_ALLOW_IPS)
