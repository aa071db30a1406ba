"""Create external runs, and set the statuses that their runners report.

A runner reports past events, so any status may follow any status that is not final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic_ai.messages import ModelRequest, UserPromptPart

from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import tool_results, transcript
from runs.lifecycle import approval_rows, command_outcomes, moves, summaries
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunMessage, ExternalRun
from runs.providers.messages import request
from runs.statuses import RunStatus
from timeline import log
from timeline.events.run import RunCreated
from timeline.log import AppendResult, Entry
from timeline.models import Log, RunKind, Source

#: Maximum characters of an agent's name.
MAX_AGENT = 128


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """The data of a new external run."""

    source: AgentRun.Source = AgentRun.Source.EXTERNAL
    external_id: str | None = None
    agent: str = ""
    model: str = ""
    title: str = ""
    #: The first user message.
    prompt: str = ""
    session_id: str = ""
    run_kind: RunKind = RunKind.SESSION
    parent: AgentRun | None = None
    labels: Sequence[str] = ()
    #: The actor that creates it, as named in the audit log.
    by: str = ""
    #: The time of its creation by the runner's clock, for past runs. None: now.
    created_at: datetime | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


def id_of_external(project: Project, external_id: str) -> UUID | None:
    """Return the ID of the project's run with this external ID, also while it is being deleted; None without one."""
    runs = AgentRun._base_manager.filter(project=project, external_id=external_id)
    return runs.values_list("pk", flat=True).first()


def open_run(project: Project, reported: ReportedRun) -> AgentRun:
    """Write an external run that has not started, with its first event, in the caller's transaction."""
    now = reported.created_at or database_clock.now()
    agent, _ = REDACTOR.clean_text(reported.agent)
    ledger = Log.objects.create(project=project, node_id=agent[:MAX_AGENT], run_kind=reported.run_kind)
    prompt, _ = REDACTOR.clean_text(reported.prompt)
    run = AgentRun(
        log=ledger,
        project=project,
        agent_config={
            "agent_id": agent[:MAX_AGENT],
            "model": REDACTOR.clean_text(reported.model)[0][:200],
            **reported.config,
        },
        root_run_id=ledger.pk,
        parent_run=reported.parent,
        source=reported.source,
        external_id=reported.external_id,
        title=(REDACTOR.clean_text(reported.title)[0] or prompt.strip().partition("\n")[0])[:200],
        prompt=prompt or None,
        session_id=REDACTOR.clean_text(reported.session_id)[0][:128],
        run_kind=reported.run_kind,
        labels=list(dict.fromkeys(REDACTOR.clean_text(label)[0] for label in reported.labels)),
        created_at=now,
        queued_at=now,
    )
    run.save(force_insert=True)
    is_import = reported.source == AgentRun.Source.IMPORT
    imported_at = database_clock.now() if is_import else None
    ExternalRun.objects.create(
        run=run, sender=reported.by[:200], imported_at=imported_at, given_title=run.title if is_import else ""
    )
    parent = str(reported.parent.pk) if reported.parent else None
    rows = transcript.add_requests(run, _first_messages(reported), step=1, epoch=None, position=0)
    created = RunCreated(agent=agent or None, parent_run_id=parent, by=reported.by or None)
    entries = [Entry(created, ts=reported.created_at), *(transcript.message_event(row) for row, _ in rows)]
    source = Source.IMPORT if is_import else Source.INGEST
    queued = [replace(entry, phase=PHASES[RunStatus.QUEUED]) for entry in entries]
    log.append(run.pk, queued, source=source, run_kind=reported.run_kind)
    log.announce_run(project.pk, run.pk)
    return run


def _first_messages(reported: ReportedRun) -> list[tuple[str, ModelRequest]]:
    if not reported.prompt:
        return []
    part = UserPromptPart(reported.prompt, timestamp=reported.created_at or database_clock.now())
    return [(AgentRunMessage.Role.USER, request(part))]


def report(
    run: AgentRun,
    to: RunStatus,
    entry: Entry,
    *,
    source: Source,
    reason: str = "",
    at: datetime | None = None,
    is_final: bool = True,
    **changes: Any,
) -> list[AppendResult]:
    """Set the reported status and append its event, in the caller's transaction, which has locked the run's row.

    `at` is the time of the event. An imported file without times does not say when its run started, so `started_at` is
    not set then. If the run ends, its open calls, commands and approval are closed first. Unless the end `is_final`,
    calls stay open, because the run may be reopened and receive their results.
    """
    is_timed, at = at is not None or source is not Source.IMPORT, at or database_clock.now()
    if to.terminal:
        summaries.fill_in(run, changes)
        changes["completed_at"] = max(at, run.started_at or at)
    elif to is RunStatus.RUNNING and run.started_at is None and is_timed:
        changes["started_at"] = at
    previous = run.status
    before = approval_rows.cancel(run) if to.terminal else []
    for name, value in {"status": to.value, "status_reason": REDACTOR.clean_text(reason)[0][:64], **changes}.items():
        setattr(run, name, value)
    run.save(update_fields=["status", "status_reason", *changes])
    if to.terminal:
        if is_final:
            tool_results.close_open_calls(run, epoch=None, source=source)
        command_outcomes.close(run.pk, to)
    results = log.append(run.pk, [*before, entry], source=source, run_kind=RunKind(run.run_kind))
    if previous != run.status:
        log.announce_run(run.project_id, run.pk)
        if source is not Source.IMPORT:
            moves.log_move(run, to, reason, changes)
    return results
