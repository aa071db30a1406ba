"""Every URL of the site, grouped by prefix."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, URLResolver, include, path

from agentops.accounts import inbox_pages
from agentops.accounts.entry_pages import LoginPage, admin_login
from agentops.accounts.redaction_rules import rule_pages
from agentops.base.http import error_pages
from agentops.mcp_server import http_endpoint
from agentops.site.csp_report import csp_report
from runs.api.telemetry.metrics_view import metrics
from runs.pages.overview.home_page import home

handler400 = error_pages.bad_request
handler403 = error_pages.forbidden
handler404 = error_pages.not_found
handler500 = error_pages.server_error

admin.autodiscover()

urlpatterns: list[URLPattern | URLResolver] = [
    # /api/ first, because it is requested most often, and patterns are tried one by one.
    path("api/", include("runs.api.urls")),
    path("", include("runs.api.ingest.urls")),
    path("", home, name="home"),
    path("login", LoginPage.as_view(), name="login"),
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
    path("p/<slug:project>/settings/redaction", rule_pages.index, name="redaction"),
    path("p/<slug:project>/settings/redaction/add", rule_pages.add, name="redaction-add"),
    path("p/<slug:project>/settings/redaction/remove", rule_pages.remove, name="redaction-remove"),
    path("p/<slug:project>/settings/redaction/model-input", rule_pages.set_model_input, name="redaction-model-input"),
    path("p/<slug:project>/settings/redaction/test", rule_pages.test, name="redaction-test"),
    # /p/{project}/… and /runs/{run}/…
    path("", include("runs.pages.urls")),
    # /admin/
    path("admin/login/", admin_login),
    path("admin/", admin.site.urls),
]
