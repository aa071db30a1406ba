"""Banners of runs in every status and for every reason, made by the same functions as banners of real runs.

These functions look for the run's events and find none, because the run is not saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from django.http import HttpRequest

from runs.lifecycle.questions import OpenQuestion
from runs.models import AgentRun, RunCommand
from runs.pages.approvals.shown_approval import shown
from runs.pages.run.action_commands import approval_command, outcome_command
from runs.pages.run.banner import Banner, ChildInNeed
from runs.pages.run.banners import banners_of
from runs.pages.run.lineage import Lineage
from runs.pages.run.waits import open_call, question_of
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from tests.support.components.sample_content import SampleContent
from tests.support.components.sample_rows import BEGIN, sample_approval, sample_call, sample_data, sample_id, sample_run
from timeline.display import clean, clip
from timeline.reasons import ABANDONED

_NO_LINEAGE = Lineage([sample_id(1)], 1, [], None, None, [])


def all_banners(content: SampleContent) -> list[Banner]:
    """Return the banners of each run status, of each reason to wait or pause, and of other occasions."""
    return [*_child_banners(content), *_of_native_runs(content), *_of_external_runs(content)]


def waits(request: HttpRequest, content: SampleContent) -> Sequence[Banner]:
    """Return the banners that end a wait: a question, an approval, and tool calls with an unknown outcome."""
    run = sample_run(content, RunStatus.WAITING, WaitReason.INPUT)
    call = sample_call(content, run)
    question = question_of(OpenQuestion(call, content.text, [content.name, content.title] * content.rows))
    approval = shown(sample_approval(content, run, 7), may_decide=True)
    calls = [open_call(sample_call(content, run, at)) for at in content.entries]
    return [
        replace(_banner(content, WaitReason.INPUT), text="", question=question),
        replace(
            _banner(content, WaitReason.APPROVAL),
            approval=approval,
            approval_command=approval_command(request, run, approval.call_id),
        ),
        replace(
            _banner(content, WaitReason.UNKNOWN_TOOL),
            calls=[replace(each, command=outcome_command(request, run, each.id)) for each in calls],
        ),
    ]


def _banner(content: SampleContent, reason: WaitReason) -> Banner:
    [banner] = _banners(content, sample_run(content, RunStatus.WAITING, reason))
    return banner


def _of_native_runs(content: SampleContent) -> Iterator[Banner]:
    reasons = {RunStatus.PAUSED: tuple(PauseReason), RunStatus.WAITING: tuple(WaitReason)}
    for status in RunStatus:
        for reason in reasons.get(status, ("",)):
            yield from _banners(content, sample_run(content, status, reason))
    lost = sample_run(content, RunStatus.RUNNING)
    lost.lease_expires_at = BEGIN - timedelta(minutes=1)
    commands = [_command(content, type_) for type_ in RunCommand.Type]
    yield from _banners(content, lost, commands, unknown=content.rows)


def _of_external_runs(content: SampleContent) -> Iterator[Banner]:
    for status, reason in (
        (RunStatus.RUNNING, ""),
        (RunStatus.PAUSED, ""),
        (RunStatus.WAITING, WaitReason.UNKNOWN_TOOL),
        (RunStatus.WAITING, content.title),
        (RunStatus.STOPPED, ABANDONED),
    ):
        run = sample_run(content, status, reason)
        run.source = AgentRun.Source.EXTERNAL
        yield from _banners(content, run)


def _banners(
    content: SampleContent, run: AgentRun, commands: Sequence[RunCommand] = (), *, unknown: int = 0
) -> list[Banner]:
    counts = {ToolStatus.UNKNOWN.value: unknown} if unknown else {}
    data = replace(sample_data(content, run), child_count=0, calls_by_status=counts)
    return banners_of(data, _NO_LINEAGE, list(commands))


def _child_banners(content: SampleContent) -> Iterator[Banner]:
    name, title = clip(content.name, 160).text, clip(content.title, 160).text or "(untitled)"
    children = [ChildInNeed(f"/runs/{sample_id(at)}", f"Approve or deny {name}", title) for at in content.entries]
    if children:
        yield Banner(level="warn", icon="child", head=f"{len(children)} child runs need you", children=children)
    yield Banner(level="error", icon="failed", head=clean(content.title) or "Failed", quote=clean(content.output))


def _command(content: SampleContent, type_: RunCommand.Type) -> RunCommand:
    return RunCommand(type=type_, created_by=content.name or "admin", received_at=BEGIN)
