"""The steps of a login after the password or the OpenID provider, and what every completed login does."""

from __future__ import annotations

from typing import Any, NoReturn

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse

from agentops.accounts.audit import AuditAction, record
from agentops.accounts.errors import LoginRefused
from agentops.accounts.login.known_browsers import remember_browser
from agentops.accounts.requests import principal_of


class LoginAdapter(DefaultAccountAdapter):
    """The login flow of allauth, without its sign-up: accounts come from invitations and administrators."""

    def get_login_stages(self) -> list[str]:
        """Return the further steps of a login: the second factor of users who have one."""
        return ["allauth.mfa.stages.AuthenticateStage"] if settings.AGENTOPS_SECOND_FACTOR else []

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Return False."""
        return False

    def post_login(self, request: HttpRequest, user: User, **details: Any) -> HttpResponse:
        """Write an audit entry, remember the browser and redirect."""
        response: HttpResponse = super().post_login(request, user, **details)
        after = {"method": "openid"} if "sociallogin" in (details["signal_kwargs"] or {}) else None
        record(principal_of(request), AuditAction.LOGIN, project=None, obj=user, after=after)
        remember_browser(response, user.get_username().casefold())
        return response

    def respond_user_inactive(self, request: HttpRequest, user: User) -> NoReturn:
        """Raise LoginRefused for a deactivated user of the OpenID provider. The login form refuses others itself."""
        raise LoginRefused("your account on this site is deactivated")
