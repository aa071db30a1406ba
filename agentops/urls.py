"""Every URL of the site, grouped by prefix."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, URLResolver, include, path

from agentops.accounts import inbox_pages
from agentops.accounts.entry_pages import LoginPage, admin_login
from agentops.accounts.settings_pages import redaction_page
from agentops.base.http import error_pages
from agentops.mcp_server import http_endpoint
from agentops.site.csp_report import csp_report
from runs.api.docs import metrics
from runs.pages.overview_page import home

handler400 = error_pages.bad_request
handler403 = error_pages.forbidden
handler404 = error_pages.not_found
handler500 = error_pages.server_error

admin.autodiscover()
LOGIN = "agentops.accounts.login"

urlpatterns: list[URLPattern | URLResolver] = [
    # /api/ first, because it is requested most often, and patterns are tried one by one.
    path("api/", include("runs.api.urls")),
    path("", include("runs.api.ingest.otlp_views")),
    path("", home, name="home"),
    path("login", LoginPage.as_view(), name="account_login"),
    path("logout", LogoutView.as_view(), name="logout"),
    path("csp-report", csp_report, name="csp-report"),
    path("metrics", metrics, name="metrics"),
    path("mcp", http_endpoint.endpoint, name="mcp"),
    # /p/{project}/notifications
    path("p/<slug:project>/notifications", inbox_pages.index, name="notifications"),
    path("p/<slug:project>/notifications/read", inbox_pages.read, name="notifications-read"),
    # /account, /projects, /invitations/{token}, /p/{project}/settings/{members,keys,audit}
    path("", include("agentops.accounts.settings_pages.urls")),
    # /p/{project}/settings/redaction
    path("p/<slug:project>/settings/redaction", redaction_page.index, name="redaction"),
    path("p/<slug:project>/settings/redaction/add", redaction_page.add, name="redaction-add"),
    path("p/<slug:project>/settings/redaction/remove", redaction_page.remove, name="redaction-remove"),
    path(
        "p/<slug:project>/settings/redaction/model-input", redaction_page.set_model_input, name="redaction-model-input"
    ),
    path("p/<slug:project>/settings/redaction/test", redaction_page.test, name="redaction-test"),
    # /p/{project}/… and /runs/{run}/…
    path("", include("runs.pages.urls")),
    # /login/second-factor, /account/second-factor, /account/confirm; /login/openid
    *([path("", include(f"{LOGIN}.second_factor_urls"))] if settings.AGENTOPS_SECOND_FACTOR else []),
    *([path("", include(f"{LOGIN}.openid_urls"))] if settings.AGENTOPS_OIDC_ISSUER else []),
    # /admin/
    path("admin/login/", admin_login),
    path("admin/", admin.site.urls),
]
