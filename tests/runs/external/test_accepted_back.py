"""Events returned by the API can be sent back: every type, in every dialect."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops.accounts.models import Project
from runs.external import legacy_lines
from runs.external.ingest import Sender, record, record_all
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.factories import drive, make_agent, make_project, make_run
from timeline import events, log
from timeline.agent_dialect_output import WholeTexts, agent_events
from timeline.events import EVENT_TYPES, REGISTRY, InvalidPayload
from timeline.models import Event, Phase, RunKind, Source

pytestmark = pytest.mark.django_db
FIRST = datetime(1, 1, 2)  # noqa: DTZ001 - a bound of naive times
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
#: A field gets the first of these that it accepts: an example, and the strategy to use if the example is valid.
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *((value, st.just(value)) for value in ("user", "llm", "partial", "project", "here", True)),
    *((value, st.just(value)) for value in ([{"id": "c", "name": "n"}],)),
    ("", TEXT),
    ("a", st.text("abc/. ", min_size=1, max_size=8)),
    (0, st.integers(0, 2**40)),
    ([""], st.lists(TEXT, max_size=2)),
    (["a"], st.lists(st.text("ab", min_size=1), max_size=2)),
    ([0], st.lists(st.integers(0, 9), max_size=2)),
    ({"a": 1}, st.dictionaries(TEXT, JSON, max_size=2)),
    ("2031-05-06T07:08:09Z", st.just("2031-05-06T07:08:09Z")),
    ([[None]], st.lists(JSON, max_size=3)),
    ([{"a": [None]}], st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=3)),
]
LINES = ("run.phase", "tool.output", "error", "run.completed")


def fits(type_: str, name: str, value: object) -> bool:
    try:
        events.validate(type_, {name: value})
    except InvalidPayload as error:
        return not any(f"{problem.pointer}/".startswith(f"/{name}/") for problem in error.problems)
    return True


@cache
def values_of(type_: str, name: str) -> st.SearchStrategy[Any]:
    fitting = [values for example, values in VALUES if fits(type_, name, example)]
    assert fitting, f"no value fits {type_} {name}"
    return st.one_of(fitting)


@st.composite
def stored_events(draw: st.DrawFn, type_: str) -> Event:
    """Generate an event of this type as stored in a log."""
    payload: dict[str, Any] = {}
    for name, field in REGISTRY[type_].model_fields.items():
        if field.is_required() or draw(st.booleans()):
            payload[name] = draw(values_of(type_, name))
    if type_ == "run.phase":
        payload["status"] = draw(st.sampled_from(["running", "queued"]))
    if type_ in ("tool.start", "tool.end"):
        payload |= {"call_id": "c1", "tool_name": "Read"}
    return Event(
        log_id=uuid4(),
        seq=draw(st.integers(1, 2**40)),
        ref_id=uuid4(),
        run_kind=draw(st.sampled_from(RunKind)),
        phase=draw(st.sampled_from(Phase)),
        type=type_,
        payload=events.validate(type_, payload),
        ts=draw(st.datetimes(FIRST, timezones=st.just(UTC))),
        step=draw(st.none() | st.integers(0, 99)),
        node_id=draw(st.sampled_from(["", "verifier", "node[3]"])),
        source=draw(st.sampled_from(Source)),
        event_id=draw(st.none() | st.text("ab.:-_9", min_size=1, max_size=128)),
        late=draw(st.booleans()),
    )


@pytest.fixture
def sender() -> Sender:
    return Sender(Project.objects.create(slug="outside", name="Outside"), "key:test")


def as_answered(event: Event) -> list[dict[str, Any]]:
    """Return an event as the API does, in the vocabulary of the log and in the agent dialect."""
    forms = [log.wire(event), *agent_events(event, WholeTexts()), *agent_events(event, WholeTexts(is_flow=True))]
    return list(json.loads(json.dumps(forms)))


@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_event_is_accepted_back(sender: Sender, type_: str, data: st.DataObject) -> None:
    for answered in as_answered(data.draw(stored_events(type_))):
        run = str(uuid4())
        documents = [{"runId": run, "type": "run.started"}, {**answered, "runId": run}]
        assert [result.error for result in record(sender, documents)] == [None, None], answered


@pytest.mark.parametrize("type_", LINES)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_line_is_accepted_back(sender: Sender, type_: str, data: st.DataObject) -> None:
    run, other = str(uuid4()), str(uuid4())
    event = {**log.wire(data.draw(stored_events(type_))), "runId": run}
    record(sender, [{"runId": run, "type": "run.started"}, json.loads(json.dumps(event))])
    session = legacy_lines.session_of(AgentRun.objects.get(external_id=run))

    opened = legacy_lines.events_of_patch(other, None, line=None, status="running", files=session["changed_files"])
    record_all(sender, opened)
    for line in session["output"]:
        record_all(sender, legacy_lines.events_of_patch(other, "running", line=line, status=None, files=[]))
    again = legacy_lines.session_of(AgentRun.objects.get(external_id=other))
    assert again["output"] == session["output"]


@pytest.mark.parametrize("status", ["resumed", *(status for status in legacy_lines.STATUSES if status != "resumed")])
def test_every_status_is_accepted_back(sender: Sender, status: str) -> None:
    record_all(sender, [{"runId": "r", "type": "run.started"}])
    record_all(sender, legacy_lines.events_of_patch("r", "running", line=None, status=status, files=[]))


@pytest.mark.parametrize("dialect", ["", "agent"])
def test_the_log_of_a_run_is_accepted_back_as_another_run(sender: Sender, dialect: str) -> None:
    """From its first event to its last, whichever program executed it."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    run = drive(make_run(make_agent(make_project("alpha"), slug="reviewer"), "Review it."))
    url: str | None = f"/api/projects/alpha/agent-runs/{run.pk}/events?limit=200" + (dialect and f"&dialect={dialect}")
    answered: list[dict[str, Any]] = []
    while url:
        page = client.get(url).json()
        answered, url = answered + page["results"], page["next"]

    results = record(sender, [{**one, "runId": "copy"} for one in answered])
    assert [result.error and result.error.detail for result in results] == [None] * len(answered)
    copy = AgentRun.objects.get(external_id="copy")
    assert [str(one) for one in invariants.check(copy.pk) if not one.warning_only] == []
    assert replay_check.differences(copy.pk) == []
    assert (copy.status, copy.agent_config["agent_id"]) == (run.status, "reviewer")
    assert (copy.input_tokens, copy.output_tokens) == (run.input_tokens, run.output_tokens)
    ended = run.tool_calls.order_by("call_id").values_list("call_id", "tool_name", "status")
    assert list(copy.tool_calls.order_by("call_id").values_list("call_id", "tool_name", "status")) == list(ended)
