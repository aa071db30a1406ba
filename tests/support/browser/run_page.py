"""What a test reads off the page of a run.

May import Playwright.
"""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from runs.models import AgentRun

#: What differs between two looks at the same row: running times, and ids of what was only just shown.
_MOVING = re.compile(r"\b\d+(\.\d+)? (ms|s|min|h)\b( \d+ (s|min)\b)?|just now|\d+ s ago")


def open_run(page: Page, run: AgentRun, query: str = "") -> None:
    page.goto(f"/runs/{run.pk}{query}")


def live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("Live")


def status(page: Page, word: str, *, timeout: float = 10_000) -> None:
    expect(page.locator("#run-line .status")).to_have_text(word, timeout=timeout)


def row_ids(page: Page) -> list[str]:
    """Of the timeline, in order, without the link to older ones."""
    ids: list[str] = page.eval_on_selector_all("#timeline > li:not(.older)", "rows => rows.map(row => row.id)")
    return ids


def seqs(page: Page) -> list[int]:
    found: list[int] = page.eval_on_selector_all(
        "#timeline > li[data-seq]", "rows => rows.map(row => Number(row.dataset.seq))"
    )
    return found


def texts(page: Page) -> list[str]:
    """The rows' texts, without what moves by itself."""
    found = page.eval_on_selector_all(
        "#timeline > li:not(.older)", "rows => rows.map(row => row.textContent.replace(/\\s+/g, ' ').trim())"
    )
    return [_MOVING.sub("…", text) for text in found]


def assert_each_once(page: Page) -> None:
    ids = row_ids(page)
    assert len(ids) == len(set(ids)), f"doubled: {sorted(each for each in ids if ids.count(each) > 1)}"
    found = seqs(page)  # once: a page that is live grows between two looks
    assert found == sorted(found), "out of order"
