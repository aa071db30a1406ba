"""Policies act: every combination of trigger and action, on a real worker in this process."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError
from pytest_django import Settings

from agentops.accounts.models import Notification
from runs import chaos
from runs.actions.resume import resume
from runs.agents.policies import INVALID, ErrorKind, PolicyAction, Trigger, parse, rule_for
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Attempt, RunCommand
from runs.statuses import RunStatus, ToolStatus
from runs.worker import sweep
from runs.worker.worker import Worker
from tests.support.engine import (
    OCCASIONS,
    TOOLS,
    DieAt,
    MakeScripted,
    applied,
    dies,
    done,
    elsewhere,
    fails,
    falls_silent,
    in_order,
    lineage,
    of_type,
    saying,
    with_policies,
)
from tests.support.factories import drive

pytestmark = pytest.mark.django_db(transaction=True)
#: Expected status and reason of the run for each trigger and action; "pass" and "block" are the results of a gate.
LEADS_TO: dict[tuple[str, str], tuple[str, str]] = {
    ("on_idle", "nudge"): ("completed", ""),
    ("on_idle", "done"): ("completed", ""),
    ("on_idle", "fail"): ("failed", "idle"),
    ("on_idle", "escalate"): ("paused", "escalated"),
    ("on_idle", "pass"): ("completed", ""),
    ("on_idle", "block"): ("paused", "escalated"),
    ("on_dead", "done"): ("completed", ""),
    ("on_dead", "fail"): ("failed", "worker_died"),
    ("on_dead", "resume"): ("waiting", "on_dead"),
    ("on_dead", "escalate"): ("paused", "escalated"),
    ("on_dead", "pass"): ("completed", ""),
    ("on_dead", "block"): ("paused", "escalated"),
    ("on_error", "fail"): ("failed", "unauthorized"),
    ("on_error", "resume"): ("waiting", "on_error"),
    ("on_error", "escalate"): ("paused", "escalated"),
    ("on_error", "pass"): ("completed", ""),
    ("on_error", "block"): ("paused", "escalated"),
    ("on_prompt", "done"): ("completed", ""),
    ("on_prompt", "fail"): ("failed", "asked"),
    ("on_prompt", "escalate"): ("waiting", "input"),
    ("on_prompt", "pass"): ("completed", ""),
    ("on_prompt", "block"): ("waiting", "input"),
    ("on_cut", "fail"): ("failed", "answer_cut"),
    ("on_cut", "resume"): ("waiting", "on_cut"),
    ("on_cut", "escalate"): ("paused", "escalated"),
    ("on_cut", "pause"): ("paused", "answer_cut"),
    ("on_cut", "accept"): ("completed", ""),
    ("on_refused", "fail"): ("failed", "answer_refused"),
    ("on_refused", "resume"): ("waiting", "on_refused"),
    ("on_refused", "escalate"): ("paused", "escalated"),
    ("on_refused", "pause"): ("paused", "answer_refused"),
    ("on_refused", "accept"): ("completed", ""),
}
GATES = {"pass": "true", "block": "false"}


@pytest.fixture(autouse=True)
def gate_commands(settings: Settings) -> None:
    settings.AGENTOPS_GATE_COMMANDS = ["true", "false", sys.executable]


def told_as(trigger: str, act: str, form: str) -> Any:
    """Return the policy in a form that an agent definition may use."""
    rule: dict[str, Any] = {"action": act} if act not in GATES else {"action": "gate", "run": GATES[act]}
    match form:
        case "word":
            return act
        case "rule":
            return rule
    other = {"match": ["rate_limited"], "action": "fail"}
    return [other, {"match": ["unauthorized"]} | rule] if trigger == "on_error" else [rule]


@pytest.mark.parametrize(("trigger", "act"), LEADS_TO)
def test_every_form_is_parsed_as_the_same_rule(trigger: str, act: str) -> None:
    """Each combination therefore needs a test in one form only."""
    forms = ["rule", "list"] if act in GATES else ["word", "rule", "list"]
    read = [parse({trigger: told_as(trigger, act, form)}) for form in forms]
    rules = {rule_for(policies, Trigger(trigger), ErrorKind.UNAUTHORIZED) for policies in read}

    [rule] = {replace(rule, match=frozenset()) for rule in rules if rule is not None}
    assert (rule.action, rule.run) == (("gate", GATES[act]) if act in GATES else (act, None))


def test_the_table_covers_every_valid_combination() -> None:
    acts = {"gate" if act in GATES else act for _, act in LEADS_TO}
    met = {(trigger, "gate" if act in GATES else act) for trigger, act in LEADS_TO}
    assert acts == set(PolicyAction)
    assert met == {(trigger, action) for trigger in Trigger for action in PolicyAction} - set(INVALID)


@pytest.mark.parametrize(("trigger", "act"), LEADS_TO)
def test_each_combination_acts(scripted: MakeScripted, die_at: DieAt, worker: Worker, trigger: str, act: str) -> None:
    run = OCCASIONS[trigger](scripted, die_at, worker, told_as(trigger, act, "list"))

    assert (run.status, run.status_reason) == LEADS_TO[trigger, act]
    [told] = applied(run)
    assert (told["trigger"], told["action"]) == (trigger, "gate" if act in GATES else act)
    assert told.get("passed") is ({"pass": True, "block": False}.get(act))
    assert told.get("kind") == ("unauthorized" if trigger == "on_error" else None)
    assert bool(told.get("reason")) is (trigger != "on_idle" or act in GATES)
    # The policy event and the status change are one commit, and both have the source `policy`.
    move = of_type(run, "run.completed", "run.failed", "run.paused", "run.waiting", "command.received")[-1]
    assert {event.source for event in of_type(run, "policy.applied")} == {"policy"}
    assert move.source == "policy" or (act == "nudge" and run.status == "completed")
    subject = {"escalate": "Escalated: ", "block": "Escalated: ", "pause": "Paused: "}.get(act)
    notes = list(Notification.objects.all())
    assert [note.run_id for note in notes] == ([run.pk] if subject else [])
    assert all(note.title.startswith(subject or "") for note in notes)
    in_order(run)


def test_an_answer_without_a_policy_completes_the_run(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(scripted(saying(["I looked around."]), tools=TOOLS), worker)

    assert (run.status, run.result, applied(run)) == (RunStatus.COMPLETED, "I looked around.", [])
    in_order(run)


def test_an_answer_completes_the_run_if_the_agent_has_no_done_tool(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(with_policies(scripted(saying(["I looked around."])), on_idle="nudge"), worker)

    assert (run.status, applied(run)) == (RunStatus.COMPLETED, [])
    in_order(run)


def test_an_error_without_a_matching_rule_pauses_the_run(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    run = fails(scripted, die_at, worker, [{"match": ["rate_limited"], "action": "escalate"}])

    assert (run.status, run.status_reason, run.error_type) == (RunStatus.PAUSED, "error", "unauthorized")
    assert applied(run) == []
    in_order(run)


def test_a_dead_run_without_a_policy_is_recovered(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    """The same run continues with the next epoch."""
    run = scripted(calls=[["ledger_read"], ["ledger_read"]], tools=TOOLS)
    assert die_at(run, "tool.running", hit=2)

    run = drive(run, worker)

    assert (run.status, run.lease_epoch, applied(run)) == (RunStatus.COMPLETED, 2, [])
    in_order(run)


# --- Idle ---------------------------------------------------------------------------------------------------------


def nudges(run: AgentRun) -> list[Any]:
    return [
        c.payload["message"] for c in RunCommand.objects.filter(run=run, created_by="policy:on_idle").order_by("id")
    ]


def test_a_nudge_is_a_user_message(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    run = falls_silent(scripted, die_at, worker, {"action": "nudge", "message": "Are you done? Say so."})

    assert (run.status, run.result) == (RunStatus.COMPLETED, "All is done.")
    said = AgentRunMessage.objects.filter(run=run, role="user").order_by("position")
    assert [m.content["parts"][0]["content"] for m in said] == ["Go.", "Are you done? Say so."]
    assert nudges(run) == ["Are you done? Say so."]
    assert not RunCommand.objects.filter(run=run, applied_at=None).exists()
    assert [(a["attempt"], a["attempts"]) for a in applied(run)] == [(1, 1)]
    in_order(run)


def test_nudges_are_counted_per_lineage_and_end_in_an_escalation(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(saying(["Hm."]), tools=TOOLS)
    run = drive(with_policies(run, on_idle={"action": "nudge", "attempts": 2}), worker)

    assert (run.status, run.status_reason, run.step_count) == (RunStatus.PAUSED, "escalated", 3)
    assert len(nudges(run)) == 2
    assert [(a["action"], a.get("attempt"), a.get("exhausted")) for a in applied(run)] == [
        ("nudge", 1, None),
        ("nudge", 2, None),
        ("escalate", None, True),
    ]
    # A resume by a person does not reset the attempts of the lineage.
    new = drive(resumed_by_hand(run), worker)
    assert (new.status, new.status_reason, nudges(new)) == (RunStatus.PAUSED, "escalated", [])
    in_order(new)


def resumed_by_hand(run: AgentRun) -> AgentRun:
    return resume(run.pk, by="user:oscar").run


@pytest.mark.parametrize("point", ["checkpoint.before", "model.before_start", "model.before_call", "turn.committed"])
def test_a_nudge_is_delivered_once_despite_a_later_crash(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, point: str
) -> None:
    """The worker dies before the checkpoint that precedes the nudge, and at later points."""
    run = with_policies(
        scripted(saying(["Hm."], ["Hm."], [done()]), tools=TOOLS), on_idle={"action": "nudge", "attempts": 2}
    )
    assert die_at(run, point, hit=2)

    run = drive(run, worker)

    assert run.status == RunStatus.COMPLETED
    keys = RunCommand.objects.filter(run=run).order_by("id").values_list("key", flat=True)
    assert list(keys) == ["~policy:on_idle:1", "~policy:on_idle:2"][: len(keys)]
    users = AgentRunMessage.objects.filter(run=run, role="user").count()
    assert users == 1 + len(keys)
    in_order(run)


def test_a_message_takes_precedence_over_a_nudge(scripted: MakeScripted, worker: Worker) -> None:
    """A person sends a message while the model gives the answer that would be nudged."""
    said = elsewhere(lambda: inbox.send(run.pk, "Stop dawdling.", by="user:oscar"))
    run = with_policies(scripted(saying(["Hm.", said], [done()]), tools=TOOLS), on_idle="nudge")

    run = drive(run, worker)

    assert (run.status, run.step_count, nudges(run)) == (RunStatus.COMPLETED, 2, [])
    assert AgentRunMessage.objects.filter(run=run, role="user").count() == 2
    in_order(run)


# --- Worker death -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", ["resume", "recover", "Recover"])
def test_a_dead_run_is_resumed_as_a_new_run(scripted: MakeScripted, die_at: DieAt, worker: Worker, alias: str) -> None:
    """The alias `recover` works too, also in the frozen configuration of a run; open calls are closed."""
    run = dies(scripted, die_at, worker, {"action": alias, "message": "Look where you were.", "attempts": 2})
    assert sweep.resume_due() == 1
    new = drive(lineage(run)[1], worker)

    run.refresh_from_db()
    assert (run.status, run.status_reason) == (RunStatus.RESUMED, "on_dead")
    assert new.status == RunStatus.COMPLETED
    assert new.prompt == "Look where you were."
    statuses = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "id").values_list("status", flat=True)
    assert list(statuses) == [ToolStatus.COMPLETED, ToolStatus.UNKNOWN, ToolStatus.DENIED]
    assert [(a["action"], a["attempt"], a["attempts"]) for a in applied(run)] == [("resume", 1, 2)]
    in_order(run)


def test_deaths_of_the_lineage_are_counted(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    """Each death resumes the lineage as a new run until the attempts are used up; no step is poison before that."""
    run = with_policies(scripted(calls=[["ledger_read"]] * 9), on_dead={"action": "resume", "attempts": 3})
    for _ in range(3):
        assert die_at(run, "tool.running")
        assert drive(run, worker).status == RunStatus.WAITING
        assert sweep.resume_due() == 1
        run = lineage(run)[-1]
    assert die_at(run, "tool.running")

    run = drive(run, worker)

    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "escalated")
    assert [len(applied(each)) for each in lineage(run)] == [1, 1, 1, 1]
    assert applied(run)[0]["exhausted"]
    in_order(run)


def test_a_suspended_worker_cannot_undo_a_resume(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    """Late results of the worker that was considered dead change nothing."""
    zombie = Worker()
    woken: list[AgentRun] = []

    def suspended() -> None:
        """Recover and resume the run while its first worker waits for the model."""
        AgentRun.objects.filter(pk=run.pk).update(lease_expires_at="2020-01-01T00:00:00Z")
        assert worker.drive(run.pk)
        sweep.resume_due()
        woken.extend(lineage(run))

    run = with_policies(scripted(saying(["Late.", elsewhere(suspended)], ["In time."]), tools=TOOLS), on_dead="resume")
    try:
        assert zombie.drive(run.pk)
    finally:
        zombie.close(5)

    run.refresh_from_db()
    assert (run.status, run.status_reason) == (RunStatus.RESUMED, "on_dead")
    assert [each.pk for each in lineage(run)] == [each.pk for each in woken]
    assert not AgentRunMessage.objects.filter(run=run, role="assistant").exists()
    assert Attempt.objects.get(run=run, epoch=1).end_reason in ("died", "fenced")
    assert drive(woken[1], worker).result == "In time."
    in_order(run)


@pytest.mark.parametrize(("wish", "status"), [("stop", RunStatus.STOPPED), ("pause", RunStatus.PAUSED)])
def test_a_command_takes_precedence_over_a_policy(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, wish: str, status: RunStatus
) -> None:
    run = with_policies(scripted(calls=[["ledger_read"], ["ledger_read"]], tools=TOOLS), on_dead="done")
    assert die_at(run, "tool.running", hit=2)
    {"stop": inbox.stop, "pause": inbox.pause}[wish](run.pk, by="user:oscar")

    run = drive(run, worker)

    assert (run.status, run.status_reason, applied(run)) == (status, "operator", [])
    in_order(run)


def test_a_death_is_decided_once(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message continues the run despite its policy; a later storage error does not count as a second death."""
    run = with_policies(scripted(calls=[["ledger_read"]] * 3, tools=TOOLS), on_dead="done")
    assert die_at(run, "tool.running")
    inbox.send(run.pk, "Go on.", by="user:oscar")
    failures = [OperationalError("the disk is full")]

    def once(point: str) -> None:
        if point == "hooks.before" and run_steps(run) == 2 and failures:
            raise failures.pop()

    monkeypatch.setattr(chaos, "point", once)
    run = drive(run, worker)

    assert (run.status, run.step_count, applied(run), failures) == (RunStatus.COMPLETED, 4, [], [])
    in_order(run)


def run_steps(run: AgentRun) -> int:
    return AgentRun.objects.values_list("step_count", flat=True).get(pk=run.pk)


def test_the_policy_decides_about_a_poisoned_step(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    run = with_policies(scripted(calls=[["ledger_read"]]), on_dead={"action": "fail", "message": "It died on me."})
    assert die_at(run, "model.before_call")

    run = drive(run, worker)

    assert (run.status, run.error_type, run.error_message) == (RunStatus.FAILED, "worker_died", "It died on me.")
    in_order(run)


# --- Gates --------------------------------------------------------------------------------------------------------


def test_a_gate_gets_the_answer_and_its_output_is_stored(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    """Exit 0 completes the run; the gate reads the answer from standard input and gets no secret of the site."""
    code = "import os, sys; print(sys.stdin.read().upper(), os.environ['AGENTOPS_TRIGGER'], 'SECRET_KEY' in os.environ)"
    run = falls_silent(scripted, die_at, worker, {"action": "gate", "run": f'{sys.executable} -c "{code}"'})

    assert (run.status, run.result) == (RunStatus.COMPLETED, "I looked around.")
    [told] = applied(run)
    assert (told["passed"], told["output"]) == (True, "I LOOKED AROUND. on_idle False")
    assert told["reason"].endswith("exit 0")
    in_order(run)


def test_a_failing_gate_escalates(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    """Any other exit status escalates to a person."""
    code = "import sys; print('two tests fail'); sys.exit(3)"
    run = falls_silent(scripted, die_at, worker, {"action": "gate", "run": f'{sys.executable} -c "{code}"'})

    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "escalated")
    [told] = applied(run)
    assert (told["passed"], told["output"]) == (False, "two tests fail")
    assert "exit 3" in told["reason"]
    assert "exit 3" in Notification.objects.get().text
    in_order(run)


def test_a_gate_can_be_a_tool(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, tmp_path: Any, settings: Settings
) -> None:
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    (tmp_path / "ready").write_text("yes")
    there, gone = ({"action": "gate", "run": f'read_file {{"path": "{name}"}}'} for name in ("ready", "missing"))
    runs = []
    for rule in (there, gone):
        run = with_policies(scripted(saying(["Hm."]), tools=TOOLS, root=str(tmp_path)), on_idle=rule)
        runs.append(drive(run, worker))

    assert [run.status for run in runs] == [RunStatus.COMPLETED, RunStatus.PAUSED]
    for run in runs:
        in_order(run)


def test_a_gate_runs_again_after_a_crash(scripted: MakeScripted, die_at: DieAt, worker: Worker, tmp_path: Any) -> None:
    """Nothing was written before its verdict, so the next worker runs the gate again."""
    asked = tmp_path / "asked"
    code = f"open('{asked}', 'a').write('x')"
    run = scripted(saying(["I looked around."]), tools=TOOLS)
    with_policies(run, on_idle={"action": "gate", "run": f'{sys.executable} -c "{code}"'})
    assert die_at(run, "tool.returned")

    run = drive(run, worker)

    assert (run.status, asked.read_text(), len(applied(run))) == (RunStatus.COMPLETED, "xx", 1)
    in_order(run)


def test_a_worker_that_shuts_down_during_a_gate_decides_nothing(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, tmp_path: Any
) -> None:
    """A run released during the gate of `on_dead` still counts as a run whose worker died."""
    started = tmp_path / "started"
    code = f"import pathlib, time; pathlib.Path('{started}').touch(); time.sleep(60)"
    run = with_policies(
        scripted(calls=[["ledger_read"]]), on_dead={"action": "gate", "run": f'{sys.executable} -c "{code}"'}
    )
    assert die_at(run, "tool.running")
    ending = Worker()

    def end_when_started() -> None:
        while not started.exists():
            ending.shutdown.requested.wait(0.02)
        ending.shutdown.request(0)

    watcher = threading.Thread(target=end_when_started)
    watcher.start()
    assert ending.drive(run.pk)
    watcher.join(60)
    ending.close(5)
    run.refresh_from_db()
    assert (run.status, run.status_reason, applied(run)) == (RunStatus.QUEUED, "on_dead", [])
    in_order(run)
    with_policies(run, on_dead="fail")

    assert drive(run, worker).error_type == "worker_died"
    in_order(run)


# --- Runs that cannot be loaded -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "leads_to"),
    [
        (None, ("paused", "error")),
        ("fail", ("failed", "unusable_agent")),
        ("escalate", ("paused", "escalated")),
        ({"action": "resume", "cooldown": "5m"}, ("waiting", "on_error")),
        ({"action": "gate", "run": "true"}, ("paused", "error")),
    ],
)
def test_a_policy_applies_to_a_run_whose_tool_no_longer_exists(
    scripted: MakeScripted, worker: Worker, policy: Any, leads_to: Any
) -> None:
    run = with_policies(scripted(calls=[]), **({"on_error": policy} if policy else {}))
    run.agent_config["tools"] = ["gone"]
    run.save(update_fields=["agent_config"])

    run = drive(run, worker)

    assert (run.status, run.status_reason) == leads_to
    in_order(run)


def test_a_run_whose_tool_no_longer_exists_leaves_no_turn_open(
    scripted: MakeScripted, die_at: DieAt, worker: Worker
) -> None:
    """Its worker died during the model call, and the next worker cannot load the run."""
    run = with_policies(scripted(calls=[]), on_error="escalate")
    assert die_at(run, "model.before_call")
    run.agent_config["tools"] = ["gone"]
    run.save(update_fields=["agent_config"])

    run = drive(run, worker)

    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "escalated")
    assert [event.payload["reason"] for event in of_type(run, "llm.turn.abandoned")] == ["worker_lost"]
    in_order(run)
