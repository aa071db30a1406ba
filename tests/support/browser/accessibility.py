"""The accessibility faults that axe-core finds on a page."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

#: The axe-core rules that depend on colours.
COLOUR_RULES = ["color-contrast", "link-in-text-block"]


def obstacles(page: Page, *, of_colours_only: bool = False) -> list[str]:
    """Return the violated rules of axe-core, each with the first element that violates it.

    `of_colours_only`: check only the rules that depend on colours, for a page that is already checked in other colours.
    """
    # axe-core stays loaded until the page is left.
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if of_colours_only:
        options["runOnly"] = {"type": "rule", "values": COLOUR_RULES}
    found = page.evaluate("options => axe.run(options).then(results => results.violations)", options)
    return [f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:200]}" for rule in found]
