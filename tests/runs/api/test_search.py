"""The parameter `q` searches the text of runs, literally: characters of SQL patterns match themselves."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentops.accounts.models import Project
from runs.models import AgentRun
from runs.queries.searching import search
from tests.support.api import add_messages, ids_of, make_logless_run, make_runs, pages_of, said
from tests.support.factories import make_project

pytestmark = pytest.mark.breaks_invariants("rows that are made to be listed, without a log")

URL = "/api/projects/alpha/agent-runs"
IMAGE = {"kind": "binary", "data": "bmVlZGxl", "media_type": "needle/png"}


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def run_saying(project: Project, *contents: Any, **fields: Any) -> AgentRun:
    run = make_logless_run(project, title="", **fields)
    add_messages(run, 1, content=said(*contents))
    return run


def found(client: Client, text: str, **query: object) -> list[str]:
    answer = client.get(URL, {"q": text, **query})
    assert answer.status_code == 200, answer.content
    return ids_of(answer.json())


@pytest.mark.parametrize(
    "text",
    [
        *("100%", "_", "a_b", "back\\slash", "\\", "%", '"quoted"', "'", "'; --", "line\nbreak", "tab\t", "\\n"),
        *("\\u00e9", "é", "日本", "🙂", "(a+)+$", "[a-z]*", "{{7*7}}", "<b>", "$.parts", "\x1b[2J"),
    ],
)
def test_the_text_is_matched_literally(text: str, project: Project, client: Client) -> None:
    wanted = run_saying(project, f"before {text} after")
    run_saying(project, "a1b axb 1000 backslash quoted linebreak tabs e aaa 49 <i> before  after")

    assert found(client, text) == [str(wanted.pk)]


def test_titles_and_texts_of_messages_are_searched(project: Project, client: Client) -> None:
    text = run_saying(project, "some Needle here")
    second = run_saying(project, "nothing", "a NEEDLE")
    listed = run_saying(project, ["look at this", "needle", IMAGE])
    titled = make_logless_run(project, title="The needle")
    run_saying(project, [IMAGE, "nothing"])
    run_saying(make_project("beta"), "needle")

    assert found(client, "nEEdle") == [str(run.pk) for run in (titled, listed, second, text)]
    # Field names and metadata of messages are not searched.
    for word in ("part_kind", "user-prompt", "binary", "bmVlZGxl", "request"):
        assert found(client, word) == [], word


def test_non_ascii_letters_are_matched_case_sensitively_on_both_databases(project: Project, client: Client) -> None:
    run = run_saying(project, "Ärger")

    assert found(client, "ÄRGER") == [str(run.pk)]
    assert found(client, "ärger") == []


def test_a_search_can_be_combined_with_filters(project: Project, client: Client) -> None:
    run = run_saying(project, "needle", source="import")
    run_saying(project, "needle")

    assert found(client, "needle", source="import") == [str(run.pk)]


def test_each_request_searches_a_limited_number_of_runs(
    project: Project, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may be short or empty; its links lead through all runs in both directions."""
    monkeypatch.setattr(search, "MAX_RUNS", 7)
    wanted = [run_saying(project, "needle") for _ in range(3) if make_runs(project, 10)]
    there = list(pages_of(client, f"{URL}?q=needle&limit=2"))
    back = list(pages_of(client, there[-1]["previous"], "previous"))

    newest_first = [str(run.pk) for run in reversed(wanted)]
    assert [id_ for page in there for id_ in ids_of(page)] == newest_first
    assert [] in [ids_of(page) for page in there]
    assert len(there) == 5
    assert [id_ for page in reversed(back) for id_ in ids_of(page)] in (newest_first, newest_first[:-1])


def test_long_runs_count_more_towards_the_limit(
    project: Project, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request searches at least one whole run of any length."""
    monkeypatch.setattr(search, "MAX_STEPS", 100)
    make_runs(project, 4, step_count=60)
    make_runs(project, 1, step_count=1000)

    assert len(list(pages_of(client, f"{URL}?q=needle"))) == 5


def test_a_full_page_stops_the_search(project: Project, client: Client) -> None:
    runs = [run_saying(project, "needle") for _ in range(5)]
    pages = [ids_of(page) for page in pages_of(client, f"{URL}?q=needle&limit=2")]

    assert pages == [[str(run.pk) for run in part] for part in (runs[:2:-1], runs[2:0:-1], runs[:1])]
