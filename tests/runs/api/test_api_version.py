"""The version of the API in requests and responses, and announcements that an operation will be removed."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pytest
from django.test import Client

from agentops.base.http.api_version import HEADER, VERSION, Deprecation, is_served
from runs.api.action_views import Runs, Stop
from runs.api.docs import document
from tests.support.factories import make_agent, make_run, with_key

DEPRECATION = Deprecation(since=date(2027, 3, 1), sunset=date(2027, 10, 1))


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/projects", "/api/projects/unknown", "/api/internal/agent-events", "/api/x"])
def test_every_response_of_the_api_states_the_version(path: str) -> None:
    assert Client().get(path).headers[HEADER] == str(VERSION)


@pytest.mark.django_db
def test_pages_and_other_protocols_have_no_version() -> None:
    for path in ("/login", "/healthz", "/v1/traces"):
        assert HEADER not in Client().get(path, headers={HEADER: "99"}).headers


@pytest.mark.django_db
def test_programs_of_the_next_and_the_previous_version_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentops.base.http.api_version.VERSION", 7)
    key = with_key(make_agent().project)

    answers = {named: Client().get("/api/projects", headers={**key, HEADER: str(named)}) for named in range(4, 11)}

    assert {named: answer.status_code for named, answer in answers.items()} == {
        4: 400,
        5: 400,
        6: 200,
        7: 200,
        8: 200,
        9: 400,
        10: 400,
    }
    problem = answers[5].json()
    assert (problem["code"], problem["oldest"], problem["version"]) == ("api_version_not_served", 6, 7)
    assert problem["detail"] == "Agentops-Version is '5'; this site serves 6 to 8. Upgrade the program, or the site."
    assert {answer.headers[HEADER] for answer in answers.values()} == {"7"}


@pytest.mark.parametrize("named", ["", "0", "01", "-1", "1.0", "1, 1", "latest", "9" * 5000, "\u0661"])
def test_what_is_no_version_is_refused(named: str) -> None:
    assert not is_served(named)


@pytest.mark.django_db
def test_deprecated_operation_announces_its_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 9745 gives the announcement in seconds since 1970, RFC 8594 the removal as a date of HTTP."""
    monkeypatch.setattr(Runs, "deprecations", {"GET": DEPRECATION})
    agent = make_agent()
    make_run(agent)
    make_run(agent)
    runs, key = f"/api/projects/{agent.project.slug}/agent-runs", with_key(agent.project, "read", "write")

    listed = Client().get(f"{runs}?limit=1", headers=key)
    refused = Client().get(runs)
    started = Client().post(runs, {"agent_id": agent.slug}, content_type="application/json", headers=key)

    for answer, status in ((listed, 200), (refused, 401)):
        assert (answer.status_code, answer.headers["Sunset"]) == (status, "Fri, 01 Oct 2027 00:00:00 GMT")
        announced = datetime.fromtimestamp(int(answer.headers["Deprecation"].removeprefix("@")), UTC)
        assert (announced.date(), announced.utcoffset()) == (date(2027, 3, 1), timedelta(0))
    first, following = listed.headers["Link"].split(", ", 1)
    assert first == '</api/docs>; rel="deprecation"; type="text/html"'
    assert 'rel="next"' in following
    assert (started.status_code, "Deprecation" in started.headers) == (201, False)


def test_deprecated_operation_is_described_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stop, "deprecations", {"POST": DEPRECATION})

    paths = json.loads(document.__wrapped__())["paths"]

    operation = paths["/api/projects/{project}/agent-runs/{run_id}/stop"]["post"]
    assert operation["deprecated"]
    assert operation["description"].startswith("Deprecated since 2027-03-01. It will be removed on 2027-10-01.")
    deprecated = [verb for verbs in paths.values() for verb in verbs.values() if verb.get("deprecated")]
    assert deprecated == [operation]
