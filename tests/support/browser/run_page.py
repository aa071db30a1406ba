"""Helpers that read the page of a run.

May import Playwright.
"""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from runs.models import AgentRun

#: Text that differs between two reads of the same row: durations and relative times.
_MOVING = re.compile(r"\b\d+(\.\d+)? (ms|s|min|h)\b( \d+ (s|min)\b)?|just now|\d+ s ago")


def open_run(page: Page, run: AgentRun, query: str = "") -> None:
    page.goto(f"/runs/{run.pk}{query}")


def live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("Live")


def status(page: Page, word: str, *, timeout: float = 10_000) -> None:
    expect(page.locator("#run-line .status")).to_have_text(word, timeout=timeout)


def row_ids(page: Page) -> list[str]:
    """Return the IDs of the timeline's rows, in order, without the link to older rows."""
    ids: list[str] = page.eval_on_selector_all("#timeline > li:not(.older)", "rows => rows.map(row => row.id)")
    return ids


def seqs(page: Page) -> list[int]:
    found: list[int] = page.eval_on_selector_all(
        "#timeline > li[data-seq]", "rows => rows.map(row => Number(row.dataset.seq))"
    )
    return found


def texts(page: Page) -> list[str]:
    """Return the rows' texts, without durations and relative times."""
    found = page.eval_on_selector_all(
        "#timeline > li:not(.older)", "rows => rows.map(row => row.textContent.replace(/\\s+/g, ' ').trim())"
    )
    return [_MOVING.sub("…", text) for text in found]


def assert_each_once(page: Page) -> None:
    ids = row_ids(page)
    assert len(ids) == len(set(ids)), f"doubled: {sorted(each for each in ids if ids.count(each) > 1)}"
    found = seqs(page)  # Read once: a live page grows between two reads.
    assert found == sorted(found), "out of order"
