"""The site by WSGI, for bench.servers alone: it has no limits on slow clients, and no streams."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
application = get_wsgi_application()
