"""Checks for content that does not fit: controls outside their open menu or the window, and truncated names."""

from __future__ import annotations

from playwright.sync_api import Page

MENU_SIZES = ((1280, 800), (390, 844))
NAME_SIZES = (*MENU_SIZES, (1024, 768))
#: A control may need vertical scrolling, but not horizontal scrolling.
_OUTSIDE = """() => {
  const faults = [];
  const isWithin = (from, to, low, high) => from >= low - 1 && to <= high + 1;
  const isInside = (a, b) => isWithin(a.left, a.right, b.left, b.right) && isWithin(a.top, a.bottom, b.top, b.bottom);
  for (const panel of document.querySelectorAll("details > :is(.menu-list, .menu-panel)")) {
    const closed = [];
    for (let each = panel.parentElement; each; each = each.parentElement.closest("details")) {
      if (!each.open) closed.push(each);
      each.open = true;
    }
    const name = panel.parentElement.querySelector("summary").textContent.trim();
    if (panel.checkVisibility() && panel.scrollWidth > panel.clientWidth + 1) faults.push(`${name}: scrolls sideways`);
    for (const control of panel.querySelectorAll("a, button, input:not([type=hidden]), textarea, select, summary")) {
      if (!control.checkVisibility() || !control.getClientRects().length) continue;
      control.scrollIntoView({ block: "nearest" });
      const rect = control.getBoundingClientRect();
      const view = { left: 0, top: 0, right: document.documentElement.clientWidth, bottom: innerHeight };
      const label = control.textContent.trim().slice(0, 30) || control.name;
      if (!isInside(rect, panel.getBoundingClientRect())) faults.push(`${name}: ${label} is outside of the menu`);
      if (!isInside(rect, view)) faults.push(`${name}: ${label} is outside of the window`);
    }
    for (const each of closed) each.open = false;
  }
  scrollTo(0, 0);
  return faults;
}"""
#: Text of users and runners, in bdi elements, may be truncated.
_CUT = """() => [...document.querySelectorAll("nav a, button, .button, [role=tab], .view-name, .menu > summary")]
  .flatMap(each => [each, ...each.querySelectorAll("*")])
  .filter(each => !each.closest("bdi") && !each.querySelector("bdi") && each.checkVisibility())
  .filter(each => getComputedStyle(each).textOverflow === "ellipsis" && each.scrollWidth > each.clientWidth)
  .map(each => each.textContent.trim())"""


def misfits(page: Page) -> list[str]:
    """Return what does not fit, at each size. The page keeps the last size."""
    found: list[str] = []
    for width, height in NAME_SIZES:
        page.set_viewport_size({"width": width, "height": height})
        found += [f"{width}: cut: {name}" for name in page.evaluate(_CUT)]
        if (width, height) in MENU_SIZES:
            found += [f"{width}: menu {fault}" for fault in page.evaluate(_OUTSIDE)]
    return found
