"""The site's own middleware: security headers, host names, allowed methods, and responses for refusals.

It is synchronous, like the views.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

from csp.constants import HEADER
from csp.middleware import CSPMiddleware
from csp.utils import build_policy
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.log import log_response
from django_htmx.middleware import HtmxDetails
from redis.exceptions import RedisError

from agentops.base.database.statements import StorageFault, fault_of
from agentops.base.http.address_policy import MAX_PORT
from agentops.base.http.error_pages import API, answer
from agentops.base.refusals import Refusal

log = logging.getLogger(__name__)
GetResponse = Callable[[HttpRequest], HttpResponseBase]

#: Browser features that no page uses. They are switched off, so that an injected script cannot use them either.
UNUSED_FEATURES = (
    *("accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "fullscreen", "geolocation"),
    *("gyroscope", "magnetometer", "microphone", "midi", "payment", "picture-in-picture", "publickey-credentials-get"),
    *("screen-wake-lock", "usb", "xr-spatial-tracking"),
)
PERMISSIONS_POLICY = ", ".join(f"{feature}=()" for feature in UNUSED_FEATURES)
RETRY_AFTER_S = 5
#: Paths that are served under any host name, for probes.
PROBES = {"/healthz", "/readyz", "/metrics"}
#: Methods of views that declare none, such as views of the administration.
METHODS = ("GET", "HEAD", "POST")
#: Characters of a refused host name in the log.
MAX_HOST = 100
_PORT = re.compile(r":([0-9]+)$")


class _Middleware:
    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)


class SecureHeaders(_Middleware):
    """Sets the security headers that Django's SecurityMiddleware and django-csp do not set."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Permissions-Policy"] = PERMISSIONS_POLICY
        # Nearly every page contains data; static files set their own Cache-Control.
        response.headers.setdefault("Cache-Control", "no-store")
        return response


class PagePolicy(CSPMiddleware):
    """django-csp with a cached header, because composing the header takes as long as a query."""

    def __init__(self, get_response: GetResponse) -> None:
        super().__init__(get_response)
        self._policy = build_policy()

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        # Decorators of views change the policy by such attributes; a nonce is different in each request.
        is_special = any(name.startswith("_csp") for name in vars(response)) or hasattr(request, "_csp_nonce")
        if is_special or settings.DEBUG:
            special: HttpResponseBase = super().process_response(request, response)
            return special
        response.headers.setdefault(HEADER, self._policy)
        return response


class KnownHosts(_Middleware):
    """Refuses requests with an unknown host or without one. Django would log a traceback for each of them."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not _has_valid_host(request):
            return self._refuse(request, "A request must have one Host header, with a port up to 65535 if any.")
        if request.path_info not in PROBES:
            try:
                request.get_host()
            except DisallowedHost:
                return self._refuse(request, "This site is not served under the name in the Host header.")
        return self.get_response(request)

    def _refuse(self, request: HttpRequest, text: str) -> HttpResponse:
        response = answer(request, 400, "invalid_host", text)
        host = str(request.META.get("HTTP_HOST", ""))
        # log_response marks the response as logged, so that Django adds no line.
        log_response("host refused: %s", ascii(host[:MAX_HOST]), response=response, request=request, logger=log)
        return response


def _has_valid_host(request: HttpRequest) -> bool:
    """Return whether the Host header exists, which only HTTP/1.1 requires, and its port, if any, is valid."""
    host = request.META.get("HTTP_HOST")
    if host is None:
        # Under WSGI the HTTP version of the client is unknown, so that a missing header is accepted.
        return getattr(request, "scope", {}).get("http_version") != "1.1"
    port = _PORT.search(host)
    # The length is checked first, because Python refuses to convert thousands of digits.
    return port is None or (len(port[1]) <= 5 and 0 < int(port[1]) <= MAX_PORT)


class Methods(_Middleware):
    """Refuses methods that a URL does not support, before authentication and the CSRF check."""

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        allowed = methods_of(view)
        if request.method in allowed:
            return None
        names = ", ".join(allowed)
        response = answer(request, 405, "method_not_allowed", f"This URL accepts only {names}.")
        response.headers["Allow"] = names
        return response


def methods_of(view: Any) -> tuple[str, ...]:
    """Return the methods of a view: of its class, or as stored by agentops.base.http.methods."""
    cls = getattr(view, "view_class", None)
    if cls is None:
        return tuple(getattr(view, "methods", METHODS))
    has_get = hasattr(cls, "get")
    return tuple(name.upper() for name in cls.http_method_names if hasattr(cls, name) or (name == "head" and has_get))


class Refusals(_Middleware):
    """Turns refusals, and faults of the database, into responses."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if (fault := fault_of(exception)) is not None:
            log.error("the database cannot be used: %s", fault.short, exc_info=exception)
            return _unavailable(request, fault)
        if isinstance(exception, RedisError):
            log.error("Redis cannot be used", exc_info=exception)
            return _retry_later(answer(request, 503, "redis_unavailable", "Redis does not answer: try again later."))
        if not isinstance(exception, Refusal):
            return None
        if exception.status == 401 and not request.path_info.startswith(API):
            return _to_login(request)
        response = answer(request, exception.status, exception.code, str(exception), also=exception.facts())
        for name, value in exception.headers.items():
            response.headers[name] = value
        return response


def _unavailable(request: HttpRequest, fault: StorageFault) -> HttpResponse:
    return _retry_later(answer(request, 503, "storage_unavailable", fault.advice, also={"reason": fault.reason}))


def _retry_later(response: HttpResponse) -> HttpResponse:
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _to_login(request: HttpRequest) -> HttpResponse:
    """Return the response to a request without a session: a redirect to the login for pages, a header for htmx."""
    htmx = HtmxDetails(request)
    if "text/event-stream" in request.headers.get("Accept", ""):
        return answer(request, 401, "auth_required", "Your session has ended: log in again.")
    previous_path = _path_of(request, htmx.current_url if htmx else request.headers.get("Referer"))
    next_path = request.get_full_path() if request.method in {"GET", "HEAD"} and not htmx else previous_path
    login = f"{reverse('account_login')}?{urlencode({'next': next_path})}"
    if htmx:
        return HttpResponse(status=401, headers={"HX-Redirect": login})
    return HttpResponseRedirect(login)


def _path_of(request: HttpRequest, url: str | None) -> str:
    """Return the path and the query of a URL of this site; the path of the home page for other URLs."""
    if not url or not url_has_allowed_host_and_scheme(url, {request.get_host()}):
        return "/"
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path
