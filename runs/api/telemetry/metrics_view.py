"""`/metrics`: the metrics of the site, for Prometheus."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from agentops.base.http.operator_access import may_read
from runs.telemetry.metric_exposition import CACHE
from timeline.live.hub import open_streams


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics in the text format, to operators only. Other callers get 404."""
    site = settings.AGENTOPS_TELEMETRY
    if not may_read(request, site.metrics_token, site.metrics_allow):
        return HttpResponse("not found\n", status=404, content_type="text/plain; charset=utf-8")
    return HttpResponse(CACHE.get(open_streams()), content_type=CONTENT_TYPE_LATEST)
