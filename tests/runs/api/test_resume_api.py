"""Resumes through the API: step budgets and limits, idempotency, conversations, kills, and bulk resumes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client
from pytest_django import Settings

from agentops.accounts.models import AuditEntry, Role
from runs.lifecycle import creation, inbox, transitions
from runs.models import AgentRun, AgentRunMessage, RunCommand
from runs.statuses import RunStatus
from tests.support.api import Program, counts, endless_run, pointers, program, refused
from tests.support.factories import drive, make_agent, make_person, make_project, make_run, signed_in
from tests.support.run_checks import check, events
from tests.support.second_pass import cases
from timeline.events.run import RunCompleted, RunFailed, RunWaiting
from timeline.models import Source

#: For tests that drive runs or send requests from several threads.
COMMITS = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.usefixtures("no_hints")
UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"


@pytest.fixture
def alpha(db: None) -> Program:
    return program(make_project("alpha"))


@pytest.fixture
def paused(alpha: Program) -> AgentRun:
    run = make_run(make_agent(alpha.project))
    inbox.pause(run.pk, by="test")
    return run


def now(run: Any) -> AgentRun:
    return AgentRun.objects.get(pk=run.pk if isinstance(run, AgentRun) else run)


def resumed(alpha: Program, run: AgentRun, body: Any = None) -> AgentRun:
    answer = alpha.post(f"/{run.pk}/resume", body)
    assert answer.status_code == 201, answer.content
    return now(answer.json()["id"])


# --- Budgets ----------------------------------------------------------------------------------------------------


@COMMITS
def test_a_resumed_run_has_a_fresh_budget_and_the_steps_count_on(alpha: Program, tmp_path: Path) -> None:
    """Paused after step 9 and resumed with 10: steps 10 to 19, then paused again."""
    run = drive(endless_run(tmp_path, max_steps=9, project=alpha.project))
    answer = alpha.post(f"/{run.pk}/resume", {"max_steps": 10})
    new = drive(now(answer.json()["id"]))

    assert answer.json()["already_resumed"] is False
    assert (run.step_count, new.step_base, new.step_count) == (9, 9, 19)
    assert (new.status, new.status_reason) == ("paused", "max_steps")
    assert sorted({m.step_number for m in new.messages.filter(role="assistant")}) == list(range(10, 20))
    check(new)


@pytest.mark.breaks_invariants("only the number of its steps is set")
@COMMITS
@pytest.mark.parametrize(("at", "made"), [(480, 20), (495, 5), (499, 1), (500, 0), (501, 0)])
def test_the_cap_of_a_lineage(alpha: Program, tmp_path: Path, at: int, made: int) -> None:
    """The lineage reaches exactly 500 steps; then a resume is refused and creates no run."""
    run = drive(endless_run(tmp_path, max_steps=1, project=alpha.project))
    AgentRun.objects.filter(pk=run.pk).update(step_count=at)
    before = counts()
    answer = alpha.post(f"/{run.pk}/resume", {"max_steps": 50})
    if made:
        new = drive(now(answer.json()["id"]))
        assert (new.step_count, new.status, new.status_reason) == (500, "paused", "max_steps")
        assert new.messages.filter(role="assistant").count() == made
        before, answer = counts(), alpha.post(f"/{new.pk}/resume", {"max_steps": 50})
        # An older run of the chain answers with its existing successor instead of the limit.
        again = alpha.post(f"/{run.pk}/resume")
        assert (again.status_code, again.json()["id"], again.json()["already_resumed"]) == (200, str(new.pk), True)

    assert refused(answer) == (409, "max_total_steps_exceeded")
    assert "used all of its 500 steps" in answer.json()["detail"]
    assert answer.json()["steps"] == max(at, 500)
    assert counts() == before


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_the_limit_of_total_steps_is_a_setting(alpha: Program, paused: AgentRun, settings: Settings) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 7
    assert refused(alpha.post(f"/{paused.pk}/resume", {"max_steps": 8})) == (422, "invalid_max_steps")
    AgentRun.objects.filter(pk=paused.pk).update(step_count=7)
    assert refused(alpha.post(f"/{paused.pk}/resume")) == (409, "max_total_steps_exceeded")


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    *[({"max_steps": value}, "invalid_max_steps") for value in (0, -1, 501, 2**31, "50", 1.5, True)],
    *[({"message": value}, "message_empty") for value in ("", " ", "\n")],
    *[({name: value}, "invalid") for name in ("append", "kill") for value in (1, "true", [], "")],
    *[({name: None}, "null") for name in ("append", "kill")],
    ({"message": ["x"]}, "invalid"),
    ({"messge": "x"}, "unknown_field"),
]


def test_it_refuses_what_it_cannot_use(alpha: Program, paused: AgentRun) -> None:
    before = counts()
    for body, code in cases(UNUSABLE):
        answer = alpha.post(f"/{paused.pk}/resume", body)
        assert (refused(answer), pointers(answer)) == ((422, code), {f"/{next(iter(body))}": code}), body
        assert counts() == before, body
    assert alpha.post(f"/{paused.pk}/resume", {"message": None, "max_steps": None}).status_code == 201


# --- Resumable runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["queued", "running", "completed", "failed", "stopped"])
def test_only_paused_runs_can_be_resumed(alpha: Program, status: str) -> None:
    """409 with the status of the run."""
    run = make_run(make_agent(alpha.project))
    if status == "stopped":
        inbox.stop(run.pk, by="test")
    elif status != "queued":
        claimed = transitions.claim(run.pk, "worker")
        assert claimed is not None
        ends = {"completed": RunCompleted(), "failed": RunFailed(error_type="boom")}
        if status in ends:
            reason = "boom" if status == "failed" else ""
            transitions.move(claimed.run, RunStatus(status), ends[status], source=Source.WORKER, epoch=1, reason=reason)
    before = counts()

    for body in ({}, {"kill": True})[: 2 if RunStatus(status).terminal else 1]:
        caller = Program(alpha.project, signed_in(make_person(alpha.project, Role.ADMIN))) if body else alpha
        before["AuditEntry"] = AuditEntry.objects.count()
        answer = caller.post(f"/{run.pk}/resume", body)
        assert refused(answer) == (409, "run_not_paused")
        assert answer.json()["run_status"] == status
        assert "only paused runs can be resumed" in answer.json()["detail"]
        assert counts() == before


def test_another_projects_run_is_an_unknown_one(alpha: Program) -> None:
    """404, identical to the answer for an unknown run."""
    foreign = make_run(make_agent(make_project("beta")))
    inbox.pause(foreign.pk, by="test")
    answers = [alpha.post(f"/{run}/resume") for run in (foreign.pk, UNKNOWN)]

    assert [refused(answer) for answer in answers] == [(404, "run_not_found")] * 2
    assert len({answer.content.replace(answer.json()["request_id"].encode(), b"") for answer in answers}) == 1
    assert now(foreign).status == "paused"
    assert refused(alpha.post("/not-a-run/resume"))[0] == 404


# --- Idempotency --------------------------------------------------------------------------------------------------


@COMMITS
def test_fifty_at_once_make_one_run(alpha: Program, paused: AgentRun) -> None:
    """Through the API, a page and the command line."""
    page = Client()
    page.force_login(make_person(alpha.project, Role.OPERATOR))
    gate = threading.Barrier(50)
    answers: list[Any] = []

    def ask(number: int) -> None:
        try:
            caller = Program(alpha.project, alpha.headers)
            gate.wait(60)
            if number == 0:
                call_command("agent", "resume", "--all")
            elif number == 1:
                page.post(f"/runs/{paused.pk}/resume")
            else:
                answers.append(caller.post(f"/{paused.pk}/resume"))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask, args=[number]) for number in range(50)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    [new] = AgentRun.objects.filter(resumed_from=paused)
    assert len(answers) == 48
    assert {answer.json()["id"] for answer in answers} == {str(new.pk)}
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(201) <= 1
    assert set(statuses) <= {200, 201}
    assert all(answer.json()["already_resumed"] is (answer.status_code == 200) for answer in answers)
    assert [event.type for event in events(paused)].count("run.resumed") == 1
    assert AuditEntry.objects.filter(action="run.resumed").count() == 1


# --- The conversation ---------------------------------------------------------------------------------------------


@COMMITS
def test_a_resumed_run_continues_the_conversation(alpha: Program, tmp_path: Path) -> None:
    """The old messages do not change, the new user message comes last, and the parent run is kept."""
    parent = make_run(make_agent(alpha.project))
    run = drive(endless_run(tmp_path, max_steps=2, project=alpha.project))
    AgentRun.objects.filter(pk=run.pk).update(parent_run=parent)
    with transaction.atomic():
        creation.add_child_event(parent, run)
    before = list(AgentRunMessage.objects.filter(run=run).order_by("position").values())
    answer = alpha.post(f"/{run.pk}/resume", {"message": "And now?"})

    new = now(answer.json()["id"])
    assert answer["Location"] == f"/api/projects/alpha/agent-runs/{new.pk}"
    assert (new.resumed_from_id, new.root_run_id, new.parent_run_id) == (run.pk, run.pk, parent.pk)
    assert {answer.json()[name] for name in ("resumed_from", "root_run_id")} == {str(run.pk)}
    assert list(AgentRunMessage.objects.filter(run=run).order_by("position").values()) == before
    [said] = new.messages.all()
    assert (said.role, said.content["parts"][0]["content"]) == ("user", "And now?")
    assert now(run).status == "resumed"
    assert alpha.get(f"/{run.pk}").json()["resumed_as"] == str(new.pk)


@COMMITS
def test_a_chain_of_three_resumes_has_every_message_once(alpha: Program, tmp_path: Path) -> None:
    chain = [drive(endless_run(tmp_path, max_steps=2, project=alpha.project))]
    for number in range(3):
        chain.append(drive(resumed(alpha, chain[-1], {"message": f"Again {number}."})))
    calls = [
        (part["part_kind"], part["tool_call_id"])
        for run in chain
        for row in AgentRunMessage.objects.filter(run=run).order_by("position")
        for part in row.content["parts"]
        if part["part_kind"] in ("tool-call", "tool-return")
    ]

    assert calls == [(kind, f"call-{step}") for step in range(1, 9) for kind in ("tool-call", "tool-return")]
    # The last model request: one system message, and a request and a response for every step.
    [last] = (Path(f"{tmp_path}/ledger.calls").read_text().splitlines())[-1:]
    assert last.split(" ") == ["8", "15"]
    for run in chain:
        check(run)


def test_append_false_starts_a_new_conversation(alpha: Program, paused: AgentRun) -> None:
    new = resumed(alpha, paused, {"message": "Something else.", "append": False})
    assert (new.starts_fresh, new.prompt) == (True, "Something else.")
    inbox.pause(new.pk, by="test")
    # Without a message append=false has no effect, and the conversation continues.
    assert not resumed(alpha, new, {"append": False}).starts_fresh


# --- Kill ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(alpha: Program) -> Program:
    return Program(alpha.project, signed_in(make_person(alpha.project, Role.ADMIN)))


@COMMITS
@pytest.mark.parametrize("status", ["queued", "running", "waiting", "paused"])
def test_kill_takes_an_active_run_and_resumes_it(alpha: Program, admin: Program, status: str) -> None:
    """One transaction fences, pauses and resumes the run, with one audit entry for each action."""
    run = make_run(make_agent(alpha.project))
    if status in ("running", "waiting"):
        claimed = transitions.claim(run.pk, "worker")
        assert claimed is not None
        if status == "waiting":
            waits = RunWaiting(reason="cooldown")
            transitions.move(claimed.run, RunStatus.WAITING, waits, source=Source.WORKER, reason="cooldown", epoch=1)
    elif status == "paused":
        inbox.pause(run.pk, by="test")
    epoch = now(run).lease_epoch
    inbox.send(run.pk, "Not lost.", by="test")
    answer = admin.post(f"/{run.pk}/resume", {"kill": True, "message": "Go on."})

    assert answer.status_code == 201, answer.content
    old, new = now(run), now(answer.json()["id"])
    assert (old.status, old.lease_epoch) == ("resumed", epoch + (status != "paused"))
    assert [row.content["parts"][0]["content"] for row in new.messages.order_by("position")] == ["Not lost.", "Go on."]
    entries = AuditEntry.objects.filter(action__startswith="run.").order_by("created_at")
    trail = [(entry.action, (entry.before or {}).get("status")) for entry in entries]
    assert trail == [("run.killed", status)] * (status != "paused") + [("run.resumed", "paused")]
    for each in (old, drive(new)):
        check(each)
    assert not transitions.renew(run.pk, epoch)


def test_only_admins_may_kill(alpha: Program, admin: Program) -> None:
    """Admins and superusers may; operators and keys may not."""
    run = make_run(make_agent(alpha.project))
    operator = Program(alpha.project, signed_in(make_person(alpha.project, Role.OPERATOR)))
    before = counts()
    for body in ({"kill": True}, {"kill": True, "message": "x"}):
        assert refused(operator.post(f"/{run.pk}/resume", body)) == (403, "role_required")
        assert refused(alpha.post(f"/{run.pk}/resume", body)) == (403, "scope_required")
    for body in ({"all": True}, {"ids": [str(run.pk)], "kill": True}):
        assert refused(operator.post("/resume", body)) == (403, "role_required")
        assert refused(alpha.post("/resume", body)) == (403, "scope_required")
    assert counts() == before
    assert admin.post("/resume", {"ids": [str(run.pk)], "kill": True}).json()["resumed"]


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_a_refused_kill_does_not_affect_the_run(alpha: Program, admin: Program) -> None:
    """All or nothing: if the limit of total steps is reached, the worker keeps its run."""
    run = make_run(make_agent(alpha.project))
    assert transitions.claim(run.pk, "worker")
    AgentRun.objects.filter(pk=run.pk).update(step_count=500)
    before = counts()
    assert refused(admin.post(f"/{run.pk}/resume", {"kill": True})) == (409, "max_total_steps_exceeded")
    assert counts() == before
    assert (now(run).status, now(run).lease_epoch, transitions.renew(run.pk, 1)) == ("running", 1, True)


# --- Bulk resumes -------------------------------------------------------------------------------------------------


@pytest.fixture
def crowd(alpha: Program) -> dict[str, AgentRun]:
    agent = make_agent(alpha.project)
    runs = {name: make_run(agent) for name in ("paused", "other", "queued", "stopped", "capped")}
    for name in ("paused", "other", "capped"):
        inbox.pause(runs[name].pk, by="test")
    inbox.stop(runs["stopped"].pk, by="test")
    AgentRun.objects.filter(pk=runs["capped"].pk).update(step_count=500)
    runs["foreign"] = make_run(make_agent(make_project("beta")))
    inbox.pause(runs["foreign"].pk, by="test")
    return runs


def names(crowd: dict[str, AgentRun], told: list[dict[str, Any]]) -> dict[str, Any]:
    known = {str(run.pk): name for name, run in crowd.items()}
    return {known.get(one["id"], one["id"]): one.get("code", "") for one in told}


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_runs_in_a_bulk_resume_are_independent(alpha: Program, crowd: dict[str, AgentRun]) -> None:
    """A run that cannot be resumed does not affect the others, and is only reported as skipped."""
    wanted = [*(str(run.pk) for run in crowd.values()), UNKNOWN]
    told = alpha.post("/resume", {"ids": wanted, "message": "Go on.", "max_steps": 3}).json()

    assert names(crowd, told["resumed"]) == {"paused": "", "other": ""}
    assert names(crowd, told["skipped"]) == {
        "queued": "run_not_paused",
        "stopped": "run_not_paused",
        "capped": "max_total_steps_exceeded",
        "foreign": "run_not_found",
        UNKNOWN: "run_not_found",
    }
    assert {one["reason"] for one in told["skipped"] if one["code"] == "run_not_found"} == {"no such run"}
    for one in told["resumed"]:
        new = now(UUID(one["resumed_as"]))
        assert (str(new.resumed_from_id), new.max_steps, new.prompt) == (one["id"], 3, "Go on.")
    again = alpha.post("/resume", {"ids": wanted[:1]}).json()
    assert [(one["code"], one["id"]) for one in again["skipped"]] == [("already_resumed", wanted[0])]


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_all_resumes_the_runs_of_one_project_only(admin: Program, crowd: dict[str, AgentRun]) -> None:
    told = admin.post("/resume", {"all": True}).json()
    assert names(crowd, told["resumed"]).keys() == {"paused", "other"}
    assert names(crowd, told["skipped"]) == {"queued": "run_not_paused", "capped": "max_total_steps_exceeded"}
    assert (now(crowd["foreign"]).status, now(crowd["queued"]).status) == ("paused", "queued")

    told = admin.post("/resume", {"all": True, "kill": True}).json()
    assert "queued" in names(crowd, told["resumed"])
    assert now(crowd["queued"]).status == "resumed"


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_a_filter_selects_the_runs(admin: Program, crowd: dict[str, AgentRun]) -> None:
    AgentRun.objects.filter(pk=crowd["other"].pk).update(status_reason="max_steps")
    slug = crowd["paused"].agent_config["agent_id"]
    for chosen, found in (
        ({"agent_id": "nobody"}, set()),
        ({"root_run_id": UNKNOWN}, set()),
        ({"status_reason": "max_steps"}, {"other"}),
        ({"root_run_id": str(crowd["foreign"].pk)}, set()),
        ({"agent_id": slug, "root_run_id": str(crowd["paused"].pk)}, {"paused"}),
        ({"agent_id": slug, "status_reason": "operator"}, {"paused"}),
    ):
        told = admin.post("/resume", {"filter": chosen, "dry_run": True}).json()
        assert names(crowd, told["resumed"]).keys() == found, chosen
    operator = Program(admin.project, signed_in(make_person(admin.project, Role.OPERATOR)))
    assert refused(operator.post("/resume", {"filter": {"agent_id": slug}})) == (403, "role_required")


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_a_dry_run_returns_the_same_result_and_changes_nothing(admin: Program, crowd: dict[str, AgentRun]) -> None:
    before = counts(), list(AgentRun.objects.order_by("pk").values())
    for body in ({"all": True}, {"all": True, "kill": True}, {"ids": [str(run.pk) for run in crowd.values()]}):
        told = admin.post("/resume", body | {"dry_run": True}).json()
        assert {one["resumed_as"] for one in told["resumed"]} == {None}
        assert ("queued" in names(crowd, told["resumed"])) is ("kill" in body)
        assert (counts(), list(AgentRun.objects.order_by("pk").values())) == before


MEANINGLESS: list[tuple[dict[str, Any], str]] = [
    ({}, "which_runs"),
    ({"ids": [UNKNOWN], "all": True}, "which_runs"),
    ({"ids": [UNKNOWN], "filter": {"agent_id": "x"}}, "which_runs"),
    ({"ids": None, "all": False, "filter": None}, "which_runs"),
    ({"filter": {}}, "empty_filter"),
    ({"filter": {"status": "paused"}}, "unknown_field"),
    ({"filter": {"root_run_id": "x"}}, "invalid"),
    ({"ids": UNKNOWN}, "not_a_list"),
    ({"ids": ["x"]}, "invalid"),
    ({"ids": [5]}, "invalid"),
    ({"ids": [UNKNOWN] * 201}, "max_length"),
    ({"ids": [UNKNOWN], "which": {}}, "unknown_field"),
]


def test_an_invalid_bulk_resume_is_refused(alpha: Program) -> None:
    for body, code in cases(MEANINGLESS):
        assert refused(alpha.post("/resume", body)) == (422, code), body


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_an_invalid_message_refuses_the_whole_bulk_resume(alpha: Program, crowd: dict[str, AgentRun]) -> None:
    before = counts()
    assert refused(alpha.post("/resume", {"ids": [str(crowd["paused"].pk)], "message": " "})) == (422, "message_empty")
    assert counts() == before
    assert not RunCommand.objects.filter(type="send").exists()
