"""Browsers in which a user has logged in before, recognized by a signed cookie.

The cookie does not authenticate; login attempts from known browsers are counted separately.
"""

from __future__ import annotations

import secrets

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse

SALT = "agentops.accounts.login.known_browsers"
COOKIE_AGE_S = 180 * 24 * 3600


def cookie_name() -> str:
    """Return the name of the cookie."""
    return "__Host-browser" if settings.AGENTOPS_HTTPS else "browser"


def browser_id(request: HttpRequest, name: str) -> str | None:
    """Return the ID of the browser if the user with this case-folded name has logged in with it, otherwise None."""
    try:
        cookie = signing.loads(request.COOKIES.get(cookie_name(), ""), salt=SALT, max_age=COOKIE_AGE_S)
    except signing.BadSignature:
        return None
    return cookie["id"] if cookie["name"] == name else None


def remember_browser(response: HttpResponse, name: str) -> None:
    """Set the cookie after a login, with a new ID."""
    value = signing.dumps({"name": name, "id": secrets.token_urlsafe(16)}, salt=SALT)
    response.set_cookie(
        cookie_name(), value, max_age=COOKIE_AGE_S, secure=settings.AGENTOPS_HTTPS, httponly=True, samesite="Lax"
    )
