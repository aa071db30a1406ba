"""Model calls in several session files are counted once, and a copy is displayed as a fork or a child run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from agentops.accounts.models import Project, Role
from runs.models import AgentRun
from tests.support.clients import WatchedSite
from tests.support.factories import make_person, make_project
from tests.support.recordings import (
    FIRST,
    KEPT_TIMES,
    NEW_TIMES,
    PARENT,
    SECOND,
    counts,
    import_path,
    rollout,
    run_of,
    session,
    used,
    used_by,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def project() -> Project:
    return make_project("copies")


@pytest.fixture
def site(tmp_path: Path) -> WatchedSite:
    (tmp_path / "sessions").mkdir()
    return WatchedSite(tmp_path / "sessions")


@pytest.mark.parametrize("names", list(permutations([FIRST, SECOND])))
def test_a_backgrounded_session_is_a_fork(project: Project, names: Sequence[str]) -> None:
    for name in names:
        import_path(project, session(name))
    before = counts(project)
    for name in names:
        import_path(project, session(name))

    assert counts(project) == before
    assert used(project) == (6_600, 220, 3)
    first, second = run_of(project, FIRST), run_of(project, SECOND)
    assert (used_by(first), used_by(second)) == ((3_300, 130, 2), (3_300, 90, 1))
    assert (first.forked_from_id, second.forked_from_id, second.forked_at_step) == (None, first.pk, None)
    assert (first.title, second.title, second.prompt) == ("Refactor the parser", "Now add tests", "Now add tests")
    assert (second.messages.count(), second.external.copied_until) == (6, 4)


@pytest.mark.parametrize("names", list(permutations([PARENT, NEW_TIMES, KEPT_TIMES])))
def test_a_replayed_history_is_counted_once(project: Project, names: Sequence[str]) -> None:
    for name in names:
        import_path(project, rollout(name))
    before = counts(project)
    for name in names:
        import_path(project, rollout(name))

    assert counts(project) == before
    assert used(project) == (3_900, 130, 4)
    parent = run_of(project, PARENT)
    assert (used_by(parent), parent.parent_run_id, parent.title) == ((2_500, 90, 2), None, "Plan the release")
    for name, title in ((NEW_TIMES, "Review the plan"), (KEPT_TIMES, "Review the plan again")):
        child = run_of(project, name)
        assert (used_by(child), child.cache_read_tokens, child.title) == ((700, 20, 1), 600, title)
        assert (child.parent_run_id, child.forked_from_id, child.external.copied_until) == (parent.pk, None, 4)


def test_the_copies_of_a_missing_parent_are_counted_once(project: Project) -> None:
    import_path(project, rollout(KEPT_TIMES))
    assert used(project) == (3_200, 110, 3)

    import_path(project, rollout(NEW_TIMES))

    assert used(project) == (3_900, 130, 4)


def test_a_copy_is_marked_on_its_page_and_in_the_api(project: Project) -> None:
    for name in (SECOND, FIRST):
        import_path(project, session(name))
    first, second = run_of(project, FIRST), run_of(project, SECOND)
    client = Client()
    client.force_login(make_person(project, Role.OPERATOR))

    head = client.get(f"/runs/{second.pk}").content.decode()
    assert f'href="/runs/{first.pk}">← original run, whose beginning was copied</a>' in head
    assert f'href="/runs/{second.pk}"' in client.get(f"/runs/{first.pk}").content.decode()
    assert client.get(f"/runs/{second.pk}/messages").content.decode().count(">copied</span>") == 4
    url = f"/api/projects/{project.slug}/agent-runs/{second.pk}"
    rows = client.get(f"{url}/messages").json()["results"]
    assert [row["is_copied"] for row in rows] == [True] * 4 + [False] * 2
    assert client.get(url).json()["forked_from"] == str(first.pk)
    assert client.get(reverse("runs:compare"), {"a": first.pk, "b": second.pk}).status_code == 200


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    "files", [[session(name) for name in (SECOND, FIRST)], [*map(rollout, (KEPT_TIMES, NEW_TIMES, PARENT))]]
)
def test_watch_counts_like_an_import(site: WatchedSite, project: Project, files: list[Path], is_remote: bool) -> None:
    site.is_remote = is_remote
    site.restart()
    for file in files:
        import_path(project, file)
        lines = file.read_bytes().splitlines(keepends=True)
        half = site.folder / file.name
        half.write_bytes(b"".join(lines[: len(lines) // 2]))
        site.round()
    for file in files:
        shutil.copy(file, site.folder)
        site.round()
    site.settle()

    assert used(site.project) == used(project)
    columns = ("external_id", "title", "input_tokens", "forked_from__external_id", "parent_run__external_id")
    columns += ("external__copied_until", "cost_usd")
    watched, imported = (
        list(AgentRun.objects.filter(project=one).order_by("external_id").values_list(*columns))
        for one in (site.project, project)
    )
    assert watched == imported
