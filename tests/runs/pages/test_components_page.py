"""Test the page of components, which renders each part of the interface with each kind of content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Role
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from tests.support.component_page import GROUPS
from tests.support.component_samples import ContentKind
from tests.support.factories import make_person, make_project
from tests.support.machine import ROOT
from tests.support.pages import parse
from timeline.reasons import reason_label

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("components")]
PAGE = "/components"
TEMPLATES = ROOT / "templates"
WRITES = re.compile("INSERT|UPDATE|DELETE")
#: Partials that are not components: responses to open pages, which combine components, and the report, a separate file
#: with its own style sheet.
NOT_COMPONENTS = {
    "runs/run/_head_changes.html",
    "runs/runs/_list_changes.html",
    "runs/run/_minimap_changes.html",
    "runs/tree/_tree_changes.html",
    "runs/flows/_flow_run_changes.html",
    "runs/overview/_changes.html",
    "runs/report/_messages.html",
}
#: Templates whose output is cached after the first use, with text that shows their use.
KEPT_FORMS = {"runs/runs/_list_row.html": 'id="open-'}


@pytest.fixture
def boss() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def partials(folder: Path = TEMPLATES) -> set[str]:
    return {path.relative_to(TEMPLATES).as_posix() for path in folder.rglob("*.html") if path.name.startswith("_")}


def templates_of(answer: Any) -> set[str]:
    html = answer.content.decode()
    return {template.name for template in answer.templates} | {
        name for name, sign in KEPT_FORMS.items() if sign in html
    }


def test_only_superusers_may_open_the_page(boss: Client) -> None:
    admin = Client()
    admin.force_login(make_person(make_project("alpha"), Role.ADMIN))

    assert Client().get(PAGE)["Location"] == "/login?next=%2Fcomponents"
    assert admin.get(PAGE).status_code == 403
    assert boss.get(PAGE).status_code == 200
    assert boss.post(PAGE).status_code == 405


def test_unknown_groups_and_kinds_are_refused(boss: Client) -> None:
    assert boss.get(f"{PAGE}/nothing").status_code == 404
    assert boss.get(f"{PAGE}?content=nothing").status_code == 400


@pytest.mark.parametrize("kind", ContentKind)
@pytest.mark.parametrize("group", GROUPS)
def test_each_kind_of_content_is_rendered_without_writes(boss: Client, group: str, kind: ContentKind) -> None:
    with CaptureQueriesContext(connection) as queries:
        answer = boss.get(f"{PAGE}/{group}?content={kind}")

    assert answer.status_code == 200
    page = parse(answer.content.decode())
    assert [link.text for link in page.all("tabs")[0].elements if link.attributes.get("aria-current")] == [
        GROUPS[group].label
    ]
    assert page.all("component")
    assert [query["sql"] for query in queries if WRITES.match(query["sql"])] == []


def test_every_component_is_rendered(boss: Client) -> None:
    """A new partial must be on the page of components or in NOT_COMPONENTS."""
    shown = set().union(*(templates_of(boss.get(f"{PAGE}/{group}?content=long")) for group in GROUPS))

    assert partials() - shown == NOT_COMPONENTS


def test_every_family_of_events_is_rendered(boss: Client) -> None:
    families = {path.relative_to(TEMPLATES).as_posix() for path in (TEMPLATES / "timeline/events").glob("*.html")}

    assert families - templates_of(boss.get(f"{PAGE}/timeline")) == set()


def test_every_status_and_every_reason_is_rendered(boss: Client) -> None:
    html = boss.get(f"{PAGE}/basics").content.decode()

    for status in [*RunStatus, *ToolStatus]:
        assert f'<span class="status status-{status}">' in html
    for reason in [*PauseReason, *WaitReason]:
        assert f'<span class="muted">{reason_label(reason)}</span>' in html


@pytest.mark.parametrize("group", GROUPS)
def test_hostile_content_stays_text(boss: Client, group: str) -> None:
    html = boss.get(f"{PAGE}/{group}?content=hostile").content.decode()

    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "<svg onload" not in html
    assert "<h1 id=broken>" not in html
    assert 'href="javascript:' not in html
