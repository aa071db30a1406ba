"""What axe-core finds on a page that keeps people from using it."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

#: Those of its rules for which colours matter.
COLOUR_RULES = ["color-contrast", "link-in-text-block"]


def obstacles(page: Page, *, of_colours_only: bool = False) -> list[str]:
    """The violated rules of axe-core, each with the first element that violates it.

    `of_colours_only`: for a page that has been looked at already and differs from then in nothing but its colours.
    """
    # As long as the same page is shown, axe-core stays in it.
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if of_colours_only:
        options["runOnly"] = {"type": "rule", "values": COLOUR_RULES}
    found = page.evaluate("options => axe.run(options).then(results => results.violations)", options)
    return [f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:200]}" for rule in found]
