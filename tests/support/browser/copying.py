"""Clicking a copy button, and what it leaves: a text on the clipboard, and feedback that goes away by itself."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, expect

#: Of a context: it may read what was copied.
CLIPBOARD: dict[str, Any] = {"permissions": ["clipboard-read", "clipboard-write"]}
#: Writes down the labels that a button gets: a busy machine may look only after the feedback is gone.
RECORD_LABELS = """button => {
  button.dataset.labels = button.textContent;
  const record = () => { button.dataset.labels += `, ${button.textContent}`; };
  new MutationObserver(record).observe(button, { childList: true });
}"""


def copy(button: Locator) -> str:
    """Click a copy button; return what the clipboard then holds. `button` must not be found by its label."""
    label = button.inner_text()
    button.evaluate(RECORD_LABELS)
    button.click()
    expect(button).to_have_attribute("data-labels", f"{label}, Copied, {label}")
    copied: str = button.page.evaluate("navigator.clipboard.readText()")
    return copied
