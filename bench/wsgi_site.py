"""The site as a WSGI application, for benchmarks only: without limits on slow clients and without streams."""

from __future__ import annotations

import gc
import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
application = get_wsgi_application()

# As in timeline/live/server.py: a full collection of Django's objects would add 0.15 s to a request.
_ = get_resolver().url_patterns
gc.collect()
gc.freeze()
gc.set_threshold(10_000)
