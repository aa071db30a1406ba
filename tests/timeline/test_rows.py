"""Events as rows: each type has a family, an icon and a template."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.template.loader import get_template, render_to_string

from timeline.events import EVENT_TYPES
from timeline.models import Event
from timeline.shown_events import TEXT_BYTES, row_of

BASE = "/runs/01a1f93f-4a8e-7546-b6b8-4d9a9f3e8817"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def event(type_: str, payload: Any = None, **columns: Any) -> Event:
    return Event(type=type_, payload=payload if payload is not None else {}, seq=7, ts=NOON, **columns)


@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
def test_every_type_has_a_family_and_everything_a_row_needs(type_: str) -> None:
    row = row_of(event(type_), BASE)

    assert row.family != "custom"
    get_template(row.detail)
    symbols = (Path(settings.FILES_DIR) / "static" / "icons.svg").read_text()
    assert f'id="{row.icon}"' in symbols
    assert row.id == "e7"
    assert row.text


@pytest.mark.parametrize("type_", ["x.ours", "run", "runaway", "tool.forgotten", ""])
def test_unknown_types_are_displayed_by_type_and_payload(type_: str) -> None:
    row = row_of(event(type_, {"a": 1}), BASE)

    assert row.family == "custom"
    assert row.json.text == '{\n  "a": 1\n}'
    assert row.facts == {}


def test_facts_are_short_masked_texts() -> None:
    secret = "sk-ant-api03-" + "Ab1" * 30
    payload = {
        "error": f"bad key {secret}",
        "context": {"list": [1, "\x1b[31mred"]},
        "attempt": 2,
        "error_type": "x" * 9999,
    }
    row = row_of(event("error", payload), BASE)

    assert secret not in row.facts["error"]
    assert row.facts["context"] == '{\n  "list": [\n    1,\n    "\\u001b[31mred"\n  ]\n}'
    assert row.facts["attempt"] == 2
    assert len(row.facts["error_type"]) == TEXT_BYTES
    assert secret not in row.text


def test_announced_times_are_displayed() -> None:
    retry = row_of(event("retry.scheduled", {"delay_ms": 1500}), BASE)
    wait = row_of(event("run.waiting", {"reason": "cooldown", "until": "2026-11-20T12:05:00Z"}), BASE)

    assert retry.until == datetime(2026, 11, 20, 12, 0, 1, 500_000, tzinfo=UTC)
    assert wait.until == datetime(2026, 11, 20, 12, 5, tzinfo=UTC)
    assert row_of(event("run.waiting", {"until": "2026-99-99T12:05:00Z"}), BASE).until is None
    tomorrow = row_of(event("run.waiting", {"until": "2026-11-21T12:05:00Z"}), BASE)
    assert ">12:05:00<" in render_to_string(wait.detail, {"item": wait})
    assert ">2026-11-21 12:05:00<" in render_to_string(tomorrow.detail, {"item": tomorrow})


def test_a_row_links_to_another_log_only_by_a_valid_id() -> None:
    other = "01a1f93d-90c9-749a-b86c-718148984403"

    assert row_of(event("run.resumed", {"run_id": other}), BASE).link == f"/runs/{other}"
    assert row_of(event("run.resumed", {"run_id": "javascript:alert(1)"}), BASE).link == ""
    assert row_of(event("run.resumed", {"run_id": 5}), BASE).link == ""
