"""Logins by an OpenID provider: who may log in, and to which account.

allauth exchanges the messages with the provider. The account is found by the subject of the ID token (`sub`), or at the
first login by an e-mail address that both sides have verified. Stored subjects belong to the issuer in the settings:
two providers may use the same subject for different people.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn
from urllib.parse import urlencode

from allauth.account.adapter import get_adapter as get_login_adapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from allauth.socialaccount.providers import registry
from allauth.socialaccount.providers.base import AuthError
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.openid_connect import views
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import resolve_url
from requests import RequestException

from agentops.accounts import invitations
from agentops.accounts.errors import LoginRefused, ProviderUnavailable
from agentops.accounts.login.addresses import clean_email, user_of
from agentops.accounts.login.throttle import Throttle, TooManyAttempts
from agentops.accounts.requests import address_of, network_of_client
from agentops.base.http.methods import require_safe

log = logging.getLogger(__name__)
#: Started logins per network: each stores a session, and sends a request to the provider.
STARTS = Throttle("openid-starts", limit=60, seconds=15 * 60)
#: Characters of `sub` that the database stores.
MAX_SUBJECT = 191


class OpenIDProvider(OpenIDConnectProvider):
    """The provider in the settings. Claims are checked further, and not stored."""

    def extract_uid(self, data: dict[str, Any]) -> str:
        """Return the subject. Raise OAuth2Error unless ID token and user info have the same one."""
        subjects = {str(claims.get("sub", "")) for claims in data.values()}
        subject = subjects.pop()
        if subjects or "id_token" not in data or not 0 < len(subject) <= MAX_SUBJECT:
            raise OAuth2Error("the subject is missing, too long, or differs between ID token and user info")
        return subject

    def extract_extra_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return no claims."""
        return {}


registry.register(OpenIDProvider)


class OpenIDAdapter(DefaultSocialAccountAdapter):
    """Connects users of the provider with accounts of the site."""

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Connect a user who logs in by the provider for the first time with an account. Raise LoginRefused."""
        if not sociallogin.is_existing:
            with transaction.atomic():
                sociallogin.connect(request, _account_of(request, sociallogin))

    def on_authentication_error(self, request: HttpRequest, provider: Any, **details: Any) -> NoReturn:
        """Raise LoginRefused."""
        if details.get("error") == AuthError.CANCELLED:
            raise LoginRefused(f"the login by {provider.name} was cancelled")
        log.warning("a login by the OpenID provider failed: %s", details.get("exception") or details.get("error"))
        raise LoginRefused(f"the login by {provider.name} failed or took too long: try again")


def _account_of(request: HttpRequest, sociallogin: SocialLogin) -> User:
    """Return the account with the verified address of the provider's user, or create one. Raise LoginRefused."""
    verified = [address.email for address in sociallogin.email_addresses if address.verified]
    if not verified:
        raise LoginRefused(f"{sociallogin.provider.name} has not verified an e-mail address of yours")
    email = clean_email(verified[0])
    if (user := user_of(email)) is not None:
        return user
    links = invitations.links_of(email)
    if not links and not settings.AGENTOPS_OIDC_CREATE_USERS:
        raise LoginRefused(f"no account has the verified address {email}, and no project has invited it")
    name = get_login_adapter().generate_unique_username([sociallogin.user.username, email])
    user = invitations.sign_up_verified(name, email, links, ip=address_of(request))
    for link in links:
        project = link.invitation.project
        messages.success(request, f"Welcome. You are {link.invitation.role} of {project.name}.")
        # The page after the login may be the invitation, which is used up.
        sociallogin.state["next"] = resolve_url("runs:list", project.slug)
    return user


@require_safe
def start(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Redirect to the provider. Raise TooManyAttempts or ProviderUnavailable.

    By GET: the Content-Security-Policy lets no form lead to another site. Parameters other than `next` are dropped:
    allauth would add them to the request to the provider, or connect the account of the session with another login.
    """
    request.GET = QueryDict(urlencode({"next": request.GET.get("next", "")}))
    if wait_s := STARTS.wait_s(network_of_client(request)):
        raise TooManyAttempts(wait_s)
    try:
        response: HttpResponseBase = views.login(request, provider_id)
    except RequestException as error:
        log.warning("the OpenID provider does not answer: %s", error)
        raise ProviderUnavailable from None
    return response
