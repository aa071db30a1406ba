"""An approval as pages show it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from agentops.accounts.models import Project
from runs.lifecycle import session_subagents
from runs.models import Approval
from runs.pages.timeline.cards import LINE
from timeline.display import clean, clip, format_json, make_legible

#: Maximum bytes of the arguments on a page. Longer ones cannot be edited there.
ARGUMENTS_BYTES = 256 * 1024
_ASKED_BY = {"rule": "an approval rule", "tool": "the tool itself"}


@dataclass(frozen=True)
class ShownApproval:
    """An approval for a template."""

    id: UUID
    run_id: UUID
    call_id: UUID
    run_title: str
    project: Project
    tool: str
    #: The exact arguments as JSON, with secrets redacted.
    arguments: str
    #: The size of the arguments in bytes if they were cut; otherwise 0.
    whole: int
    #: The arguments as JSON that can be submitted unchanged; empty if they cannot be edited on a page.
    editable: str
    reason: str
    requested_by: str
    step: int
    created_at: datetime
    expires_at: datetime
    state: str
    decided_by: str
    decided_at: datetime | None
    may_decide: bool
    #: Whether an approval for all calls applies to a session with its sub-agents, instead of one run.
    is_of_session: bool


def shown(approval: Approval, *, may_decide: bool) -> ShownApproval:
    """Return an approval for display. `approval.run`, `project` and `call` must be loaded."""
    arguments = clip(format_json(approval.arguments), ARGUMENTS_BYTES)
    asked_by = approval.requested_by
    return ShownApproval(
        id=approval.pk,
        run_id=approval.run_id,
        call_id=approval.call_id,
        run_title=clip(approval.run.title, LINE).text or "(untitled)",
        project=approval.project,
        tool=clip(approval.tool_name, LINE).text,
        arguments=arguments.text,
        whole=arguments.whole,
        editable="" if arguments.whole else _editable(approval.arguments),
        reason=clean(approval.reason),
        requested_by=_ASKED_BY.get(asked_by, f"the hook {asked_by.removeprefix('hook:')}"),
        step=approval.call.step_number,
        created_at=approval.created_at,
        expires_at=approval.expires_at,
        state=approval.state,
        decided_by=clean(approval.decided_by),
        decided_at=approval.decided_at,
        may_decide=may_decide,
        is_of_session=session_subagents.is_of_session(approval.run),
    )


def _editable(arguments: object) -> str:
    """Return the arguments for a text field. Invisible characters are escaped, so that an edit keeps them."""
    if not isinstance(arguments, dict):
        return ""
    text = format_json(arguments)
    if not text.startswith("{") or make_legible(text) == text:
        return text if text.startswith("{") else ""
    return json.dumps(json.loads(text), indent=2)
