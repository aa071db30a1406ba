"""The ASGI entry point: streams are served by timeline.live, everything else by Django."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
django.setup(set_prefix=False)

# Imported here, because they need the settings and the apps.
from django.conf import settings  # noqa: E402

from agentops.base.http.request_origins import ForwardedClient  # noqa: E402
from agentops.base.http.threaded import AsgiRequest, ThreadedDjango  # noqa: E402
from runs.external.ingest_counts import flushing  # noqa: E402
from runs.management.site import warm_up  # noqa: E402
from timeline.live.server import LiveServer, StreamRequestHandler  # noqa: E402

#: Seconds after which a computing thread lets other threads run. With Python's default of 5 ms, a page waits that long
#: after each of its queries while another thread processes a batch of events.
SWITCH_S = 0.0005


if "agentops.base.http.protocol" not in sys.modules:
    logging.getLogger(__name__).warning(
        "this server limits neither the time that clients take nor their connections: use `agentops serve`"
    )
sys.setswitchinterval(SWITCH_S)
warm_up.load_web()
StreamRequestHandler.request_class = AsgiRequest
threaded_django = ThreadedDjango()


@contextmanager
def beside_the_site() -> Iterator[None]:
    """Load the site's libraries before the first request, and run its background tasks while the server runs."""
    with warm_up.loading_vendors(), flushing(), threaded_django.computing():
        yield


live_server = LiveServer(threaded_django, while_running=beside_the_site)
application = ForwardedClient(live_server, settings.FORWARDED_ALLOW_IPS)
