"""The site as a WSGI application, for bench.servers only: without limits on slow clients and without streams."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
application = get_wsgi_application()
