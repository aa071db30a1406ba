"""Client and site work with the previous version of each other (docs/guides/api.md#versions).

tests/client/exchanges has the messages of a client and a site of an earlier version. `RECORD_EXCHANGES=FILE` in the
environment of test_this_client_and_this_site records the current versions, which a release does.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentops.base.http import api_version
from agentops.client import AsyncClient
from agentops.client.connection import API_VERSION, VERSION_HEADER
from tests.support.client_session import prepare, record_a_run, use_every_method, use_new_methods
from tests.support.clients import Site
from tests.support.exchanges import Comparison, Conversation, Exchange, exchange, recording_proxy, replaying_site

MakeClient = Callable[..., Any]
FILES = sorted((Path(__file__).parent / "exchanges").glob("*.jsonl"))
every_version = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of runs has a second page, so that a cursor is recorded. The events of a run are on one page."""
    monkeypatch.setattr("agentops.client.connection.PAGE", 5)


def test_this_client_and_this_site(site: Site, make_client: MakeClient) -> None:
    ids, key = prepare()
    conversation = Conversation(ids)

    with recording_proxy(site.url, conversation) as url:
        client = make_client(url=url, key=key)
        use_every_method(client, ids)
        record_a_run(url, key)
        use_new_methods(client, ids)

    assert {each.headers[VERSION_HEADER] for each in conversation.exchanges} == {str(API_VERSION)}
    assert {name for name in vars(AsyncClient) if not name.startswith("_")} == {"close", *methods_used()}
    if path := os.environ.get("RECORD_EXCHANGES"):
        conversation.write(Path(path))


def test_client_and_site_of_one_tree_have_one_version() -> None:
    assert (VERSION_HEADER, API_VERSION) == (api_version.HEADER, api_version.VERSION)


def methods_used() -> set[str]:
    """Return the names of the methods that the program calls."""
    module = inspect.getmodule(use_every_method)
    assert module is not None
    return {name for name in vars(AsyncClient) if f"client.{name}(" in inspect.getsource(module)}


@every_version
def test_recorded_client_and_this_site(site: Site, file: Path) -> None:
    recorded = Conversation.read(file)
    ids, key = prepare()
    comparison = Comparison({recorded.ids[name]: text for name, text in ids.items()})

    faults = []
    for each in recorded.exchanges:
        live = exchange(site.url, f"Bearer {key}", comparison.translated(each))
        faults += comparison.faults(each, live)

    assert faults == []


@every_version
def test_this_client_and_recorded_site(make_client: MakeClient, file: Path) -> None:
    recorded = Conversation.read(file)

    with replaying_site(recorded) as (url, faults):
        use_every_method(make_client(url=url, key="key"), recorded.ids)
        record_a_run(url, "key")

    assert faults == []


def example(**changes: Any) -> Exchange:
    """Return an exchange, with changes to the fields of its answer. A change to None removes the field."""
    answer = {"id": "01a1f9cd-b2e1-70db-8478-b8d85dac710b", "status": "paused", "step_count": 3, "labels": ["ci"]}
    kept = {name: value for name, value in (answer | changes).items() if value is not None}
    return Exchange("GET", "/api/projects/web/agent-runs/1", {}, {}, None, 200, "application/json", kept)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"status": None}, "/status is missing"),
        ({"status": "halted"}, "/status is 'halted', not 'paused'"),
        ({"step_count": "3"}, "/step_count is '3', not 3"),
        ({"step_count": True}, "/step_count is True, not 3"),
        ({"labels": []}, "/labels/0 is missing: ci"),
        ({"labels": ["ci", "web"]}, "/labels has 2 entries, not 1"),
        ({"id": 7}, "/id is 7, not '01a1f9cd-b2e1-70db-8478-b8d85dac710b'"),
    ],
)
def test_a_response_that_is_not_compatible_is_a_fault(changes: dict[str, Any], fault: str) -> None:
    place = "GET /api/projects/web/agent-runs/1: "

    assert Comparison({}).faults(example(), example(**changes)) == [place + fault]
    assert Comparison({}).faults(example(), example(id="01a1f9cd-b2e1-70db-8478-b8d85dac7199", added=1)) == []


def test_a_request_that_the_recorded_site_does_not_know_is_a_fault() -> None:
    asked = "/api/projects/web/agent-runs/1"

    with replaying_site(Conversation({}, [example(), example()])) as (url, faults):
        assert httpx.get(url + asked).json() == example().answer
        httpx.get(f"{url}{asked}?fields=status")

    assert faults == [f"sent GET {asked}?fields=status null instead of GET {asked}? null"]
    with replaying_site(Conversation({}, [example()])) as (_, faults):
        pass
    assert faults == [f"not sent: GET {asked}? null"]
