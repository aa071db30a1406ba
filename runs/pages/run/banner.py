"""The parts of a banner on the page of a run, and functions that read them from events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse

from runs.lifecycle import session_subagents
from runs.models import AgentRun, Approval
from runs.pages.commands import ActionCommand
from runs.pages.timeline.cards import LINE
from runs.statuses import PauseReason
from timeline import log
from timeline.display import clean, clip, format_json, make_legible
from timeline.events import EventType
from timeline.models import Event
from timeline.reasons import reason_label

#: Maximum bytes of the arguments on a page. Longer ones cannot be edited there.
ARGUMENTS_BYTES = 256 * 1024
#: `Approval.requested_by`, unless it is a hook → its text.
_REQUESTED_BY = {"rule": "an approval rule", "tool": "the tool itself"}


@dataclass(frozen=True)
class ShownApproval:
    """An approval for a template."""

    id: UUID
    run_id: UUID
    call_id: UUID
    run_title: str
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


def shown_approval(approval: Approval, *, may_decide: bool) -> ShownApproval:
    """Return an approval for display. `approval.run` and `approval.call` must be loaded."""
    arguments = clip(format_json(approval.arguments), ARGUMENTS_BYTES)
    requested_by = approval.requested_by
    return ShownApproval(
        id=approval.pk,
        run_id=approval.run_id,
        call_id=approval.call_id,
        run_title=clip(approval.run.title, LINE).text or "(untitled)",
        tool=clip(approval.tool_name, LINE).text,
        arguments=arguments.text,
        whole=arguments.whole,
        editable="" if arguments.whole else _editable(approval.arguments),
        reason=clean(approval.reason),
        requested_by=_REQUESTED_BY.get(requested_by, f"the hook {requested_by.removeprefix('hook:')}"),
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
    """Return the arguments for a text field; empty if they are not an object.

    Invisible characters are escaped, so that an edit keeps them.
    """
    text = format_json(arguments) if isinstance(arguments, dict) else ""
    if not text.startswith("{"):
        return ""
    return text if make_legible(text) == text else json.dumps(json.loads(text), indent=2)


@dataclass(frozen=True)
class OpenCall:
    """A tool call with an unknown outcome that a user has to resolve."""

    id: UUID
    name: str
    step: int
    #: The arguments in one line.
    summary: str
    #: Whether the tool is not safe to repeat.
    at_most_once: bool
    #: The command that resolves the outcome as done.
    command: ActionCommand | None = None


@dataclass(frozen=True)
class AgentQuestion:
    """A question of the agent with its suggested answers."""

    text: str
    #: Pairs of the value to send and its label.
    choices: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class AwaitedSignal:
    """A signal that a remote run waits for."""

    #: The name to send, and the name for display.
    name: str
    label: str


@dataclass(frozen=True)
class ChildInNeed:
    """A descendant run that waits for a person, with a link to the page of the decision."""

    href: str
    #: The action there: a verb and its object.
    label: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Banner:
    """A notice at the top of a run page."""

    #: "info", "warn" or "error".
    level: str
    icon: str
    head: str
    text: str = ""
    #: When the cause happened.
    at: datetime | None = None
    #: The start and the end of the state, and the word before the end.
    since: datetime | None = None
    until: datetime | None = None
    until_word: str = "until"
    #: A link and its label.
    href: str = ""
    label: str = ""
    #: A shell command to copy.
    command: str = ""
    #: Untrusted text, such as an error message.
    quote: str = ""
    #: Tool calls to resolve.
    calls: Sequence[OpenCall] = ()
    #: The agent's question to answer.
    question: AgentQuestion | None = None
    #: The signal that the run waits for.
    signal: AwaitedSignal | None = None
    #: The call to approve or deny, and the command that approves it.
    approval: ShownApproval | None = None
    #: Descendant runs that wait for a person.
    children: Sequence[ChildInNeed] = ()
    approval_command: ActionCommand | None = None
    #: Whether it has a form that resumes the run.
    offers_resume: bool = False
    #: Whether it explains why the run does not continue. Such a banner appears at the live end of the timeline.
    is_wait: bool = False


#: Reason of a pause because of an answer → the effect of a resume.
RESUME_EFFECTS: dict[str, str] = {
    PauseReason.ANSWER_CUT: "A resumed run continues after what the model has written. If that is cut off again, fork "
    "the run with a higher `max_tokens` in the agent's settings.",
    PauseReason.ANSWER_REFUSED: "A resumed run does not send the refused answer again. Send a message that changes the "
    "request, start over with another prompt, or fork the run from an earlier step: otherwise the model probably "
    "refuses again.",
}


def executor(run: AgentRun) -> str:
    """Return the noun for what executes a run of this site: a worker, or a process elsewhere."""
    return "process" if run.is_remote else "worker"


def newest_event(run_id: UUID, *types: EventType) -> Event | None:
    """Return the newest event of these types, or None."""
    return log.events_of(run_id).filter(type__in=types).order_by("-seq").first()


def href_of(event: Event) -> str:
    """Return the URL of the event in the timeline."""
    return f"{reverse('runs:detail', args=[event.log_id])}?event={event.seq}#target"


def parse_time(text: Any) -> datetime | None:
    """Return the time that `text` has in ISO 8601; None if it has none."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def reason_text(code: str) -> str:
    """Return the phrase for a reason code, redacted."""
    return clean(reason_label(code))


def actor_label(by: Any) -> str:
    """Return the name of an actor for display: a user, an API key or a policy; empty without an actor."""
    name = clean(str(by or ""))
    trigger = name.removeprefix("policy:")
    return f"policy {trigger}" if trigger != name else name
