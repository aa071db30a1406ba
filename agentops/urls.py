"""Every URL of the site, grouped by prefix."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, path

urlpatterns: list[URLPattern | URLResolver] = [
    # /admin/
    path("admin/", admin.site.urls),
]
