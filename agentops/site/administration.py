"""The site of the Django administration: it is for superusers only. Everybody else uses the pages of the product."""

from __future__ import annotations

from typing import NoReturn

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import SimpleAdminConfig
from django.http import Http404, HttpRequest


class SuperuserSite(AdminSite):
    """Django's administration, for active superusers."""

    site_title = "agentops"
    site_header = "agentops administration"

    def has_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may enter: staff users and Django's permissions have no meaning here."""
        return bool(request.user.is_active and request.user.is_superuser)

    def autocomplete_view(self, request: HttpRequest) -> NoReturn:
        """Raise Http404: no form uses it, and it would show texts that are not redacted."""
        raise Http404


class AdministrationConfig(SimpleAdminConfig):
    """Django's app, with that site. Its modules register when the URLs are loaded."""

    default_site = "agentops.site.administration.SuperuserSite"
