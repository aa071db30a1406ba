"""The site's URLs, and the page of components."""

from __future__ import annotations

from django.urls import path

from agentops import urls as site
from tests.support.components import components_page

handler400, handler403, handler404, handler500 = site.handler400, site.handler403, site.handler404, site.handler500
urlpatterns = [
    path("components", components_page.index, name="all-components"),
    path("components/components.css", components_page.style, name="components-style"),
    path("components/<slug:group>", components_page.index, name="components"),
    *site.urlpatterns,
]
