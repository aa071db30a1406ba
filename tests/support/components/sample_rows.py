"""Unsaved rows: a project, runs and tool calls that exist only while the page of components is rendered.

Their IDs are small numbers, so that links and forms of the page lead to pages that do not exist.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from agentops.accounts.models import Project
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.pages.run.cascade import Cascade, NamedRun, TakenAlong
from runs.pages.run.facts import Billing, DiscardedCalls, ModelShare, RunData
from runs.statuses import Effect, RunStatus, ToolStatus
from tests.support.components.sample_content import ContentKind, SampleContent
from timeline.models import Log

#: The time of all sample events. Fixed, so that screenshots of the page do not differ.
BEGIN = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)
MODEL = "claude-opus-4-5-20251101"
_PROJECT, _RUN, _CALL = 1 << 16, 2 << 16, 3 << 16


def sample_id(number: int) -> UUID:
    """Return the ID of a run."""
    return UUID(int=_RUN + number)


def sample_project(content: SampleContent) -> Project:
    """Return a project. Its name comes from the content; its slug must be valid."""
    return Project(pk=UUID(int=_PROJECT), slug="sample", name=content.name or "sample", settings={})


def sample_run(content: SampleContent, status: RunStatus = RunStatus.RUNNING, reason: str = "", number: int = 1) -> Any:
    """Return a run with the columns and annotations that pages read."""
    project, is_empty = sample_project(content), content.kind is ContentKind.EMPTY
    log = Log(pk=sample_id(number), project=project, last_seq=0 if is_empty else 240)
    log.last_event_at = BEGIN + timedelta(minutes=3)
    started_at = None if is_empty else BEGIN + timedelta(seconds=2)
    run: Any = AgentRun(
        log=log,
        project=project,
        root_run_id=log.pk,
        agent_config={"agent_id": content.name, "provider": "fixture", "model": MODEL},
        status=status,
        status_reason=reason,
        title=content.title,
        summary=content.markdown,
        error_type="rate_limited" if status is RunStatus.FAILED else "",
        error_message=content.error,
        labels=[content.name] * min(content.rows, 5),
        step_count=content.rows,
        input_tokens=content.number,
        output_tokens=content.number // 100,
        cache_read_tokens=content.number // 2,
        cost_usd=None if is_empty else Decimal(content.number) / 10_000,
        cost_source="unknown" if is_empty else "computed",
        unpriced_calls=content.rows,
        lease_owner=content.name or None,
        lease_expires_at=BEGIN + timedelta(days=36_500),
        created_at=BEGIN,
        queued_at=BEGIN,
        started_at=started_at,
        completed_at=BEGIN + timedelta(minutes=3) if status.terminal else None,
    )
    run.worked_time, run.open_since = (None, None) if is_empty else (timedelta(minutes=2, seconds=7), None)
    run.attempt_count = 1
    return run


def sample_data(content: SampleContent, run: Any) -> RunData:
    """Return the data of other tables that the page of a run reads."""
    has_calls = content.kind is not ContentKind.EMPTY
    lost = DiscardedCalls(2, abs(content.number), Decimal("0.25")) if has_calls else DiscardedCalls()
    share = ModelShare(content.name, 3, content.number, Decimal("1.5"))
    shares = [share, ModelShare(MODEL, 1, 0, None)] if has_calls else []
    saved = Decimal("0.31") if has_calls else None
    return RunData(
        run=run,
        calls_by_status=dict.fromkeys(ToolStatus, 2) if has_calls else {},
        tool_ms=content.rows * 4200,
        recoveries=content.rows // 2,
        has_failures=has_calls,
        failed_attempts=content.rows,
        agent={"agent_id": content.name, "version": "3", "provider": "fixture", "model": MODEL},
        billing=Billing(lost, lost, content.rows, saved, content.rows, content.rows * 1700, shares),
        has_budgets=False,
        child_count=content.rows,
    )


def sample_call(content: SampleContent, run: AgentRun, number: int = 1, **fields: Any) -> AgentRunToolCall:
    """Return a tool call of a run."""
    values: dict[str, Any] = {
        "pk": UUID(int=_CALL + number),
        "run": run,
        "call_id": f"call-{number}",
        "tool_name": content.name,
        "input": content.arguments,
        "effect": Effect.AT_MOST_ONCE if number % 2 else Effect.READ,
        "step_number": number,
        "created_at": BEGIN,
    }
    return AgentRunToolCall(**values | fields)


def sample_approval(content: SampleContent, run: AgentRun, number: int = 1) -> Approval:
    """Return a pending approval of a tool call."""
    return Approval(
        pk=UUID(int=_CALL + number),
        project=run.project,
        run=run,
        call=sample_call(content, run, number),
        tool_name=content.name,
        arguments=content.arguments,
        reason=content.error,
        requested_by="rule",
        created_at=BEGIN,
        expires_at=BEGIN + timedelta(days=1),
    )


def sample_cascade(content: SampleContent) -> Cascade:
    """Return the child runs that stop or pause together with a run."""
    named = [NamedRun(sample_id(each), content.title, content.name, RunStatus.RUNNING) for each in content.entries]
    along = TakenAlong(len(named) + bool(named), named)
    return Cascade(along, along)
