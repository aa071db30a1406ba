"""Checks after a schedule: rows, ledger, listeners, client history, parity with twins, and leftovers.

May import the product. Each failure starts with the name of its check.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection
from django.db.models import DateTimeField, Q

from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Approval, Attempt, RunCommand, RunError
from runs.statuses import PauseReason, RunStatus, ToolStatus
from runs.upkeep import invariants
from tests.chaos.environment.deterministic_model import SPAWN, fault_of
from tests.chaos.environment.player_environment import Program
from tests.chaos.environment.schedule_environment import Lineage, ScheduleEnvironment
from tests.chaos.environment.workers import ChaosWorkers
from tests.chaos.verdict import history, lineage_summary
from tests.chaos.verdict.asking_and_opening import check_approvals, check_trees
from tests.chaos.verdict.lineage_summary import LineageSummary
from tests.chaos.verdict.result import Result
from tests.support.stage import Stage
from timeline.models import Event

#: The engine's fallback for unexpected errors, which must never be reached.
UNRULED = "unexpected error in a step"
ENDS = ("run.completed", "run.failed", "run.stopped", "run.resumed")
#: Tolerance for times, much less than an hour even on a slow machine. Deadlines are in the future.
CLOSE, DEADLINES = timedelta(minutes=15), {"expires_at", "lease_expires_at", "not_before"}
#: End reasons of an attempt whose worker got SIGTERM: after the step, or at the end of the grace period.
GIVEN_BACK = ("slice_over", "worker_ending")


def all_of(schedule: ScheduleEnvironment, twins: dict[Program, LineageSummary]) -> None:
    """Run all checks of rows. The processes may still be alive."""
    result = schedule.result
    result.runs = AgentRun.objects.count()
    check_rows(result)
    told = schedule.ledger.everything()
    check_effects(told["arrivals"], result)
    check_approvals(told["arrivals"], result)
    check_trees(result)
    check_requests(schedule, told["requests"])
    check_history(schedule)
    check_summaries(schedule, twins)
    check_hints(schedule.workers, result)
    measure(schedule.workers, result)
    check_logs(schedule.stage, result)
    check_blame(schedule)
    check_clocks(schedule)


def check_rows(result: Result) -> None:
    for found in invariants.check():
        if not found.warning_only:
            result.wrong("invariants", f"{found.invariant} ({found.description}): {', '.join(found.ids[:5])}")


# --- W1: effects and requests to the model ------------------------------------------------------------------------


def check_effects(arrivals: list[dict[str, Any]], result: Result) -> None:
    """Compare the ledger with the rows.

    Every effect has a started call, every completed call has its effect, and no effect comes from a fenced worker.
    """
    mine = {str(run) for run in AgentRun.objects.values_list("pk", flat=True)}
    calls = {str(call.pk): call for call in AgentRunToolCall.objects.all()}
    arrivals = [each for each in arrivals if each["run"] in mine]
    result.effects = dict(Counter(f"{each['effect']} {each['fate']}" for each in arrivals))
    by_call: dict[str, list[dict[str, Any]]] = {}
    for each in arrivals:
        by_call.setdefault(each["call"], []).append(each)
    for pk, asked in by_call.items():
        happened = [each for each in asked if each["fate"] == "happened"]
        call = calls.get(pk)
        if call is None or not call.starts:
            result.wrong("effects", f"call {pk} had {len(asked)} requests and was never marked running")
        elif len(happened) > 1:
            result.wrong("effects", f"{call.tool_name} {call.call_id} of run {call.run_id} happened {len(happened)}×")
        elif call.idempotency_key and {each["key"] for each in asked} != {call.idempotency_key}:
            result.wrong("effects", f"{call.tool_name} {call.call_id} of run {call.run_id} came under another key")
    for pk, call in calls.items():
        if call.status == ToolStatus.COMPLETED and not by_call.get(pk) and call.tool_name != SPAWN:
            result.wrong("effects", f"{call.tool_name} {call.call_id} of run {call.run_id} completed unseen")
    check_epochs(arrivals, result)


def check_epochs(arrivals: list[dict[str, Any]], result: Result) -> None:
    """Check requests from fenced workers.

    One request may be in flight at the takeover. It must have no new effect, and no other request may follow.
    """
    newest: dict[str, int] = {}
    late: Counter[tuple[str, int]] = Counter()
    for each in arrivals:
        run, epoch = each["run"], each["epoch"]
        if epoch < newest.get(run, 0):
            late[run, epoch] += 1
            if each["fate"] == "happened":
                result.wrong("effects", f"epoch {epoch} of run {run} had an effect after epoch {newest[run]}")
        newest[run] = max(epoch, newest.get(run, 0))
    for (run, epoch), times in late.items():
        if times > 1:
            result.wrong("effects", f"epoch {epoch} of run {run} made {times} calls after it was taken over")


def check_requests(schedule: ScheduleEnvironment, requests: list[dict[str, Any]]) -> None:
    """Check that an event announced every model request, and that only lost answers were requested again."""
    schedule.result.requests = len(requests)
    asked = Counter((each["agent"], each["step"]) for each in requests)
    for lineage in schedule.lineages:
        events = Event.objects.filter(log__in=[run.pk for run in lineage.runs])
        starts = Counter(events.filter(type="llm.turn.start").values_list("step", flat=True))
        lost = Counter(events.filter(type="llm.turn.abandoned").values_list("step", flat=True))
        taken_back = Counter(events.filter(type="run.rolled_back").values_list("step", flat=True))
        for (slug, step), times in asked.items():
            if slug == lineage.slug and times > starts[step]:
                schedule.result.wrong("requests", f"{slug} asked {times}× for step {step}, announced {starts[step]}×")
        for step, times in starts.items():
            if times > 1 + lost[step] + taken_back[step]:
                schedule.result.wrong("requests", f"{lineage.slug} began step {step} {times}×, lost {lost[step]}")


def requests_of(schedule: ScheduleEnvironment, lineage: Lineage) -> tuple[int, int]:
    """Return how often a lineage sent a request to the model, and how often it would have without a crash."""
    asked = [each for each in schedule.ledger.everything()["requests"] if each["agent"] == lineage.slug]
    program = lineage.program
    wishes = {"seed": program.seed, "faults": program.faults}
    steps = {each["step"] for each in asked}
    failed = 0
    for step in steps:
        ordinal = 1
        while fault_of(wishes, step, ordinal):
            failed, ordinal = failed + 1, ordinal + 1
    return len(asked), len(steps) + failed


# --- W2 and W3: data sent to clients ------------------------------------------------------------------------------


def check_listeners(schedule: ScheduleEnvironment, *, within_s: float = 20) -> None:
    """Check W2: each listener received events 1, 2, 3 … to the end of its run, over all of its connections.

    Listeners that disconnected at the end do not receive late events of a worker.
    """
    until = time.monotonic() + within_s
    for run_id, followers in schedule.followers.items():
        last = Event.objects.filter(log=run_id).count()
        end = Event.objects.filter(log=run_id, type__in=ENDS, late=False).values_list("seq", flat=True).first() or last
        for follower in followers:
            while not follower.events("end") and follower.error is None and time.monotonic() < until:
                time.sleep(0.05)
            # The final message repeats the last number, so that a client that reconnects learns that the stream is
            # over.
            ids = [int(each.id) for each in follower.messages if each.data and each.id and each.event != "end"]
            if follower.error is not None or len(ids) < end or ids != list(range(1, len(ids) + 1)):
                heard = f"{ids[:3]}…{ids[-3:]} ({len(ids)} of {last})"
                schedule.result.wrong("streams", f"run {run_id}: {heard} {follower.statuses} {follower.error!r}")


def check_history(schedule: ScheduleEnvironment) -> None:
    """Check W3: `ok` is present once, `fail` is absent, and `info` is present at most once."""
    present: dict[tuple[str, str], int] = {}
    for operation in schedule.history.operations:
        thing = (operation.kind, operation.what)
        if thing not in present:
            present[thing] = _count(schedule, operation)
    for found in history.violations(schedule.history.operations, present):
        schedule.result.wrong("history", found)
    schedule.result.operations = dict(schedule.history.counts())
    for operation in schedule.history.operations:
        if operation.outcome == "info" and operation.answer.startswith("500"):
            schedule.result.wrong("history", f"{operation.kind} {operation.what}: {operation.answer}")


def _count(schedule: ScheduleEnvironment, operation: history.Operation) -> int:
    match operation.kind:
        case "create":
            return AgentRun.objects.filter(title=operation.what, resumed_from=None).count()
        case "resume":
            return AgentRun.objects.filter(resumed_from=operation.what).count()
        case "approve":
            # Approvals made through a command are not operations of a client.
            approved = Approval.objects.filter(call=operation.what, state=Approval.State.APPROVED)
            return approved.exclude(decided_by__startswith="cli").count()
        case "send":
            return _said(schedule, operation.what)
        case _:
            return RunCommand.objects.filter(key=operation.what).count()


def _said(schedule: ScheduleEnvironment, text: str) -> int:
    """Return how often the model got the text. If the run ended first, return whether the refusal is recorded."""
    users = AgentRunMessage.objects.filter(role="user", rolled_back_at=None)
    heard = sum(row.content["parts"][0].get("content") == text for row in users)
    commands = RunCommand.objects.filter(type="send", payload__message=text)
    stopped = commands.filter(run__root_run__in=[each.runs[0].pk for each in schedule.lineages if each.stopped])
    refused = commands.filter(outcome=RunCommand.Outcome.REFUSED)
    return max(heard, int((stopped | refused).exists()))


# --- W4: parity ---------------------------------------------------------------------------------------------------


def check_summaries(schedule: ScheduleEnvironment, twins: dict[Program, LineageSummary]) -> None:
    for lineage in schedule.lineages:
        if not lineage.runs or not lineage.over:
            continue  # reported by the liveness check
        why = _incomparable(lineage) or (_incomparable(lineage.parent) if lineage.parent is not None else "")
        if why:
            schedule.result.incomparable[why] = schedule.result.incomparable.get(why, 0) + 1
            continue
        schedule.result.compared += 1
        for found in lineage_summary.differences(lineage_summary.tell(lineage.runs), twins[lineage.program]):
            schedule.result.wrong("parity", f"{lineage.slug}: {found}")


def _incomparable(lineage: Lineage) -> str:
    last = lineage.runs[-1]
    if lineage.stopped and last.state is RunStatus.STOPPED:
        return "stopped by a person"
    return "a pause closed its calls" if lineage_summary.closed_by_a_pause(lineage.runs) else ""


# --- Processes ----------------------------------------------------------------------------------------------------


def check_blame(schedule: ScheduleEnvironment) -> None:
    """Check that only harmful runs are blamed for the death of workers."""
    paused = Event.objects.filter(type="run.paused", payload__reason=PauseReason.POISON_STEP)
    for run_id in paused.exclude(log__in=schedule.harmful).values_list("log", flat=True):
        schedule.result.wrong("blame", f"run {run_id} was paused for what it did not do")


def check_hints(workers: ChaosWorkers, result: Result) -> None:
    """Check that no worker received a hint for a run that does not exist: hints are sent after the commit."""
    told = {words[0] for _, _, kind, *words in workers.lines() if kind == "hint"}
    known = {str(pk) for pk in AgentRun.objects.values_list("pk", flat=True)}
    for run_id in told - known:
        result.wrong("hints", f"a worker was told of run {run_id}, which does not exist")


def check_clocks(schedule: ScheduleEnvironment) -> None:
    """Check that all stored times are within the schedule by the database's clock, despite skewed processes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT CURRENT_TIMESTAMP")
        [now] = cursor.fetchone()
    now = now if isinstance(now, datetime) else datetime.fromisoformat(f"{now}+00:00")
    early, late = schedule.project.created_at - CLOSE, now + CLOSE
    for model in (AgentRun, AgentRunMessage, AgentRunToolCall, Approval, Attempt, Event, RunCommand, RunError):
        for field in model._meta.get_fields():
            if isinstance(field, DateTimeField) and field.name not in DEADLINES:
                wrong = model._base_manager.filter(Q(**{f"{field.name}__lt": early}) | Q(**{f"{field.name}__gt": late}))
                if moments := list(wrong.values_list(field.name, flat=True)[:3]):
                    schedule.result.wrong("clocks", f"{model.__name__}.{field.name}: {', '.join(map(str, moments))}")


def check_logs(stage: Stage, result: Result) -> None:
    for path in sorted(stage.home.glob("process-*.log")):
        text = path.read_text(errors="replace").replace(f"{UNRULED}: InjectedError", "")
        if UNRULED in text:
            after = text[text.index(UNRULED) :][:3000]
            result.wrong("logs", f"{path.name}: {after}")


def measure(workers: ChaosWorkers, result: Result) -> None:
    """Record how long runs were idle after a death or a release, and which points were met."""
    releasing = {worker.process.pid for worker in workers.all if worker.fate == "term"}
    attempts = list(Attempt.objects.order_by("run", "epoch"))
    deaths = {**workers.deaths, **{pid: at for at, pid, _ in workers.strikes() if pid in workers.deaths}}
    for before, after in itertools.pairwise(attempts):
        if before.run_id != after.run_id or after.owner.count(":") < 2:
            continue
        pid = int(before.owner.rsplit(":", 2)[1]) if before.owner.count(":") >= 2 else 0
        if before.end_reason == "died" and pid in deaths:
            result.recoveries.append(round(max(after.claimed_at.timestamp() - deaths[pid], 0.0), 2))
        elif pid in releasing and before.ended_at is not None and before.end_reason in GIVEN_BACK:
            result.handovers.append(round((after.claimed_at - before.ended_at).total_seconds(), 2))
    for _, _, kind, *words in workers.lines():
        if kind in ("pass", "strike"):
            counts = result.passed if kind == "pass" else result.struck
            counts[words[0]] = counts.get(words[0], 0) + 1


def check_leftovers(stage: Stage, result: Result) -> None:
    """End all processes of a stage. Check that none of them and none of their database connections is left."""
    sessions = {worker.pid for worker in stage.workers}
    stage.close()
    if left := _eventually_none(lambda: _of_sessions(sessions)):
        result.wrong("orphans", f"{len(left)} processes live on: {left}")
        for pid in left:
            os.kill(pid, 9)
    if stage.databases.engine == "postgres":
        url = stage.databases.env(stage.name, stage.home)["DATABASE_URL"]
        if held := _eventually_none(lambda: _connections(url)):
            result.wrong("connections", f"{held} are still open")


def _eventually_none(look: Any) -> Any:
    until = time.monotonic() + 15
    while found := look():
        if time.monotonic() > until:
            return found
        time.sleep(0.1)
    return None


def _of_sessions(sessions: set[int]) -> list[int]:
    """Return the living processes of these sessions. Each worker has a session, which includes its children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split(" ")
            except OSError:
                continue
            if int(fields[3]) in sessions and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def _connections(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as server:
        rows = server.execute(
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'agentops-w%'"
        ).fetchall()
    return [name for [name] in rows]
