"""Logs browsers' reports about violations of the Content-Security-Policy. Anyone can send any content as a report."""

from __future__ import annotations

import logging

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from agentops.accounts.login.throttle import Throttle
from agentops.accounts.requests import network_of_client
from agentops.base.http.error_pages import answer
from agentops.base.http.methods import require_POST
from agentops.base.redaction.redact import EVERYWHERE as REDACTOR

log = logging.getLogger(__name__)
MAX_BYTES = 8 * 1024
#: How many reports of one network are logged. More are dropped, so that a broken page does not fill the disk.
LOGGED = Throttle("csp-report", limit=60, seconds=600)


# Exempt, because browsers send reports without a CSRF token. A report changes no data.
@csrf_exempt
@require_POST
def csp_report(request: HttpRequest) -> HttpResponse:
    """Log the report in the body, with secrets masked."""
    body = request.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        return answer(request, 413, "body_too_large", f"A report has at most {MAX_BYTES} bytes.")
    if not LOGGED.spent(network_of_client(request)):
        report, _ = REDACTOR.clean_text(body.decode("utf-8", "replace"))
        log.warning("csp report: %s", ascii(report))
    return HttpResponse(status=204)
