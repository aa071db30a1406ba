"""Both clients of agentops.client, against a running site."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from django.db import connection

from agentops.client import (
    AccessDenied,
    AgentopsError,
    ApiError,
    AsyncClient,
    ConnectionFailed,
    InvalidRequest,
    StateConflict,
    StreamReset,
    Unauthorized,
    UnknownObject,
)
from runs.models import AgentRun
from runs.queries.run_lists.run_filters import IN_API
from tests.support.clients import Blocking, Site
from tests.support.factories import drive, make_agent, make_awaiting_approval, make_run, make_waiting
from tests.support.machine import free_port
from tests.support.remote import Program
from tests.support.timelines import finish, grow, last_seq, rewind
from tests.support.web_server import CuttingProxy

MakeClient = Callable[..., Any]


def test_a_run_is_started_followed_and_read(
    site: Site, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentops.client.connection.PAGE", 3)
    agent = make_agent(site.project)
    client = make_client()
    queued = client.start(agent.slug, "Go.", title="Mine", labels=["ci"], max_steps=40)
    assert (queued.status, queued.title, queued.labels, queued.has_ended) == ("queued", "Mine", ["ci"], False)
    drive(AgentRun.objects.get(pk=queued.id))

    run = client.run(queued.id)
    followed = list(client.follow(run.id))
    messages, tools = list(client.messages(run.id)), list(client.tool_calls(run.id))

    assert (run.status, run.has_ended) == ("completed", True)
    own = (1, run.input_tokens, run.output_tokens, run.cost_usd, 0)
    assert own == (
        run.total_runs,
        run.total_input_tokens,
        run.total_output_tokens,
        run.total_cost_usd,
        run.total_unpriced_runs,
    )
    assert [event.seq for event in followed] == [*range(1, run.last_seq + 1)]
    assert followed[-1].type == "run.completed"
    assert list(client.events(run.id)) == followed
    assert [event.seq for event in client.events(run.id, after_seq=run.last_seq - 2)] == [
        run.last_seq - 1,
        run.last_seq,
    ]
    assert len(messages) == run.message_count > 3
    assert client.message(run.id, messages[0].id).content["parts"][0]["content"] == "Go."
    assert len(tools) == run.tool_call_count > 3
    assert client.tool_call(run.id, tools[0].id).input
    assert list(client.follow(run.id, after_seq=run.last_seq)) == []


def test_lists_come_in_pages_with_filters(site: Site, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentops.client.connection.PAGE", 2)
    agent = make_agent(site.project)
    runs = [make_run(agent, labels=["odd"] if number % 2 else []) for number in range(5)]
    child = make_run(agent, parent_id=runs[0].pk)
    client = make_client()

    assert [run.id for run in client.runs()] == [child.pk, *(run.pk for run in reversed(runs))]
    assert [run.id for run in client.runs(label="odd", status=["queued", "paused"])] == [runs[3].pk, runs[1].pk]
    assert [run.id for run in client.children(runs[0].pk)] == [child.pk]
    roots = [run.pk for run in reversed(runs)]
    assert [run.id for run in client.runs(root=True, status={"queued", "paused"})] == roots
    assert [run.id for run in client.runs(root=False)] == [child.pk, *roots]


def test_the_client_names_every_filter_of_runs() -> None:
    named = AsyncClient.runs.__doc__ or ""

    assert [name for name in IN_API if f"`{name}`" not in named] == []


def test_a_run_is_controlled(site: Site, make_client: MakeClient) -> None:
    agent = make_agent(site.project)
    client = make_client()
    run = client.start(agent.slug)

    assert client.send(run.id, "Look at b.py too.").outcome is None
    assert client.pause(run.id).status == "paused"
    assert [event.type for event in client.follow(run.id, stop_on_pause=True)][-1] == "run.paused"
    resumed = client.resume(run.id, "Go on.", max_steps=30)
    again = client.resume(run.id)
    assert (resumed.resumed_from, resumed.already_resumed) == (run.id, False)
    assert (again.id, again.already_resumed) == (resumed.id, True)
    assert client.run(run.id).resumed_as == resumed.id
    drive(AgentRun.objects.get(pk=resumed.id))
    fork = client.fork(resumed.id, 2, "Otherwise.")
    assert (fork.id != resumed.id, client.stop(fork.id).status) == (True, "stopped")


def test_a_signal_is_sent_once(site: Site, make_client: MakeClient) -> None:
    run = Program(site.project).start_run()
    client = make_client()

    sent = [client.signal(run.pk, "payment", {"cents": 5}, idempotency_key="one") for _ in range(2)]
    assert [(each.type, each.outcome) for each in sent] == [("signal", None)] * 2
    assert client.run(run.pk).source == "remote"
    assert list(run.commands.values_list("payload", flat=True)) == [{"name": "payment", "payload": {"cents": 5}}]


def test_tool_calls_are_approved_and_denied(site: Site, make_client: MakeClient) -> None:
    approved, denied = make_awaiting_approval(site.project), make_awaiting_approval(site.project)
    client = make_client()
    [first], [second] = (list(client.approvals(state="pending", run_id=run.pk)) for run in (approved, denied))
    assert (first.run_id, first.tool_name, first.reason) == (approved.pk, "Grep", "It reads files.")
    assert {row.id for row in client.approvals(state=["pending", "denied"])} == {first.id, second.id}

    arguments = {**first.arguments, "path": "src"}
    decided = client.approve(first.run_id, first.call_id, arguments=arguments, always=True)
    assert (decided.state, decided.always, decided.changes) == ("approved", True, {"path": {"to": "src"}})
    assert client.tool_call(first.run_id, first.call_id).status == "planned"
    assert client.deny(second.run_id, second.call_id, "Not this one.").message == "Not this one."
    assert list(client.approvals(state="pending")) == []
    with pytest.raises(StateConflict) as late:
        client.approve(second.run_id, second.call_id)
    assert (late.value.code, late.value.problem["state"]) == ("approval_decided", "denied")


def test_an_unknown_outcome_is_resolved(site: Site, make_client: MakeClient) -> None:
    run = make_waiting(site.project)
    [waiting] = make_client().approvals(kind=["question", "unknown_outcome"])
    assert (waiting.kind, waiting.run_id, waiting.expires_at) == ("unknown_outcome", run.pk, None)
    client = make_client()
    [call] = [call for call in client.tool_calls(run.pk) if call.status == "unknown"]

    assert client.resolve_call(run.pk, call.id, "failed", "The disk was full.").status == "error"
    assert client.tool_call(run.pk, call.id).output == "The disk was full."
    assert client.run(run.pk).status == "queued"


def test_refusal_raises_an_error_with_its_details(site: Site, make_client: MakeClient) -> None:
    agent = make_agent(site.project)
    run = make_run(agent)
    finish(run)
    client, reader = make_client(), make_client(site.key("read"))

    with pytest.raises(StateConflict) as conflict:
        client.resume(run.pk)
    assert (conflict.value.status, conflict.value.code) == (409, "run_not_paused")
    assert conflict.value.problem["run_status"] == "stopped"
    with pytest.raises(InvalidRequest) as invalid:
        client.start(agent.slug, max_steps=-1)
    assert (invalid.value.status, [fault["pointer"] for fault in invalid.value.errors]) == (422, ["/max_steps"])
    with pytest.raises(UnknownObject) as unknown:
        client.run(uuid4())
    assert unknown.value.code == "run_not_found"
    assert unknown.value.request_id
    with pytest.raises(UnknownObject):
        list(client.follow(uuid4()))
    with pytest.raises(AccessDenied) as denied:
        reader.stop(run.pk)
    assert denied.value.status == 403
    with pytest.raises(Unauthorized):
        make_client("aok_live_unknown").run(run.pk)
    assert issubclass(Unauthorized, ApiError)
    assert issubclass(ApiError, AgentopsError)


def test_unreachable_site_raises_connection_failed(make_client: MakeClient) -> None:
    client = make_client(url=f"http://127.0.0.1:{free_port()}", retries=1, reconnect_s=0.0, project="p")

    with pytest.raises(ConnectionFailed):
        client.run(uuid4())
    with pytest.raises(ConnectionFailed):
        list(client.follow(uuid4()))
    with pytest.raises(ValueError, match="is not the URL of a site"):
        make_client(url="127.0.0.1:8000")


def test_retried_start_creates_one_run(site: Site, make_client: MakeClient) -> None:
    lost = []

    def lose(response: httpx.Response) -> None:
        if response.request.method == "POST" and not lost:
            lost.append(response)
            raise httpx.ReadError("cut off")

    async def lose_it(response: httpx.Response) -> None:
        lose(response)

    agent = make_agent(site.project)
    is_async = isinstance(make_client(), Blocking)
    http: Any = httpx.AsyncClient() if is_async else httpx.Client()
    http.event_hooks = {"response": [lose_it if is_async else lose]}
    client = make_client(http=http)

    run = client.start(agent.slug)

    assert len(lost) == 1
    assert [AgentRun.objects.get().pk] == [run.id]
    # The caller owns it.
    assert not http.is_closed
    client.wait_for(http.aclose()) if is_async else http.close()


@pytest.fixture
def cutting(site: Site) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(site.web.port)
    yield proxy
    proxy.close()


def test_follower_gets_each_event_once_despite_cut_connections(
    site: Site, make_client: MakeClient, cutting: CuttingProxy
) -> None:
    run = make_run(make_agent(site.project))

    def work() -> None:
        try:
            while cutting.cuts < 2:
                grow(run, 5)
                threading.Event().wait(0.05)
            # Unicode line separators must not end a line.
            grow(run, 1, text="one\u2028two\x85three\r\n")
            finish(run)
        finally:
            connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    # The proxy cuts connections whose first response is a stream.
    client = make_client(url=f"http://127.0.0.1:{cutting.ports[0]}", project=site.project.slug)
    seen = list(client.follow(run.pk))
    worker.join()

    assert cutting.cuts >= 2
    assert [event.seq for event in seen] == [*range(1, last_seq(run) + 1)]
    assert seen[-2].payload["text"] == "one\u2028two\x85three\r\n"


def test_lost_position_raises_an_error(site: Site, make_client: MakeClient) -> None:
    run = make_run(make_agent(site.project))
    last = grow(run, 20)
    rewind(run, 5)
    client = make_client()

    with pytest.raises(StreamReset) as reset:
        list(client.follow(run.pk, after_seq=last))
    assert reset.value.last_seq == 5
    finish(run)
    assert [event.seq for event in client.follow(run.pk, after_seq=last, restart=True)] == [1, 2, 3, 4, 5, 6]
