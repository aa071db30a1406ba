from __future__ import annotations

from typing import Any, NoReturn

from django.apps import AppConfig, apps
from django.contrib.admin import AdminSite
from django.contrib.admin.apps import SimpleAdminConfig
from django.db.models.signals import post_migrate, pre_migrate
from django.http import Http404, HttpRequest


class SiteConfig(AppConfig):
    """The site itself: no models; registers its checks when it is loaded."""

    name = "agentops"

    def ready(self) -> None:
        from agentops import checks
        from agentops.base.database import vendor_sql
        from agentops.base.env import BadSetting

        # Called here too, because management commands skip system checks, and elsewhere they run after the first read
        # of the cache.
        for problem in (*checks.cache_reads_no_code(None), *checks.messages_and_sessions_are_no_code(None)):
            raise BadSetting(f"{problem.msg} {problem.hint}")

        # Django sends these signals for each app with models. One sender is enough.
        projects = apps.get_app_config("projects")
        pre_migrate.connect(vendor_sql.extend, sender=projects)
        post_migrate.connect(vendor_sql.restore, sender=projects)


class SuperuserSite(AdminSite):
    site_title = "agentops"
    site_header = "agentops administration"

    def has_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an active superuser. Staff status and Django's permissions do not matter."""
        return bool(request.user.is_active and request.user.is_superuser)

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        """Register models, but not with the classes of allauth: their pages show secrets, and change anything."""
        if not (admin_class and admin_class.__module__.startswith("allauth.")):
            super().register(model_or_iterable, admin_class, **options)

    def autocomplete_view(self, request: HttpRequest) -> NoReturn:
        """Raise Http404: no form uses this view, and it would show texts that are not redacted."""
        raise Http404


class AdministrationConfig(SimpleAdminConfig):
    """Django's app `admin` with `SuperuserSite`. The modules `admin` of the apps are imported with the URLs."""

    default_site = "agentops.apps.SuperuserSite"
