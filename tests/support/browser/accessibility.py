"""What axe-core finds on a page that keeps people from using it."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_AXE = Axe()


def obstacles(page: Page) -> list[str]:
    """The violated rules of axe-core, each with the first element that violates it."""
    found = _AXE.run(page).response["violations"]
    return [f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:200]}" for rule in found]
