"""URLs of logins by the OpenID provider, with the names that allauth looks up. AGENTOPS_OIDC_ISSUER adds them."""

from __future__ import annotations

from allauth.socialaccount.providers.openid_connect.views import callback
from django.conf import settings
from django.urls import path

from agentops.accounts.login import openid

PROVIDER = {"provider_id": settings.AGENTOPS_OIDC_ISSUER}

urlpatterns = [
    path("login/openid", openid.start, PROVIDER, name="openid_connect_login"),
    path("login/openid/callback", callback, PROVIDER, name="openid_connect_callback"),
]
