"""Copy buttons: click one, read the clipboard, and check its temporary feedback."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, expect

#: Options of a browser context that allow it to read the clipboard.
CLIPBOARD: dict[str, Any] = {"permissions": ["clipboard-read", "clipboard-write"]}
#: Records each label of a button. A slow machine may read the label only after the feedback has disappeared.
RECORD_LABELS = """button => {
  button.dataset.labels = button.textContent;
  const record = () => { button.dataset.labels += `, ${button.textContent}`; };
  new MutationObserver(record).observe(button, { childList: true });
}"""


def copy(button: Locator) -> str:
    """Click a copy button and return the clipboard. `button` must not match by its label, which changes."""
    label = button.inner_text()
    button.evaluate(RECORD_LABELS)
    button.click()
    expect(button).to_have_attribute("data-labels", f"{label}, Copied, {label}")
    copied: str = button.page.evaluate("navigator.clipboard.readText()")
    return copied
