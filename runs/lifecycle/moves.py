"""The effects of a change of a run's status: the phase of its log, the calls of listeners, log lines for operators, and
notifications about paused runs that continue only when a person acts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentops.accounts import notifications
from agentops.accounts.models import Notification
from agentops.base.database.statements import after_commit
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun
from runs.statuses import PauseReason, RunStatus
from timeline.models import Phase

if TYPE_CHECKING:
    from timeline.events import Payload

#: Called with the run, its new status and the reason, in the transaction of the move and after its event.
Listener = Callable[[AgentRun, RunStatus, str], None]

#: The phase of a run's log, by the status of the run.
PHASES = {
    RunStatus.QUEUED: Phase.QUEUED,
    RunStatus.RUNNING: Phase.RUNNING,
    RunStatus.WAITING: Phase.RUNNING,
    RunStatus.PAUSED: Phase.RUNNING,
    RunStatus.RESUMED: Phase.STOPPED,
    RunStatus.COMPLETED: Phase.COMPLETED,
    RunStatus.FAILED: Phase.FAILED,
    RunStatus.STOPPED: Phase.STOPPED,
}
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> None:
    """Call `listener` in each move. Listeners move other runs, so `move` does not import them."""
    _listeners.append(listener)


def call_listeners(run: AgentRun, to: RunStatus, reason: str) -> None:
    """Call the listeners. An error of a listener rolls the move back."""
    for listener in _listeners:
        listener(run, to, reason)


log = logging.getLogger("agentops.runs")
_LEVELS = {RunStatus.FAILED: logging.ERROR, RunStatus.PAUSED: logging.WARNING}
_TOTALS = ("step_count", "input_tokens", "output_tokens", "cost_usd", "unpriced_calls")
_LOGGED = frozenset(
    {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.WAITING, RunStatus.RESUMED}
)


def log_creation(run: AgentRun) -> None:
    """Log, after the commit, that a run was created, and whether it resumes or forks another."""
    if not log.isEnabledFor(logging.INFO):
        return
    origin = {"resumed_from": run.resumed_from_id, "forked_from": run.forked_from_id, "parent_run": run.parent_run_id}
    related_ids = {name: str(run_id) for name, run_id in origin.items() if run_id is not None}
    text = "run resumes another" if run.resumed_from_id else "run opened"
    after_commit(log.info, text, extra=_facts(run, related_ids))


def log_move(run: AgentRun, to: RunStatus, reason: str, changes: Mapping[str, Any]) -> None:
    """Log, after the commit, that a run has ended, paused or begun to wait. A failure is logged as an error."""
    level = _LEVELS.get(to, logging.INFO)
    if to not in _LOGGED or not log.isEnabledFor(level):
        return
    facts = {"status": to.value, "reason": reason or None, "error_type": changes.get("error_type") or None}
    after_commit(_write, level, run, to, facts)


def _write(level: int, run: AgentRun, to: RunStatus, facts: Mapping[str, Any]) -> None:
    """Write the log line of a move. Runs that end or pause have their totals in it."""
    totals: Mapping[str, Any] = {}
    if to.terminal or to is RunStatus.PAUSED:
        # Steps add to these totals in the database only; `run` may be outdated.
        totals = AgentRun.objects.filter(pk=run.pk).values(*_TOTALS).first() or {}
    log.log(level, "run is %s", to.value, extra=_facts(run, {**facts, **totals}))


def _facts(run: AgentRun, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a log line about a run."""
    config = run.agent_config
    own = {"run_id": str(run.pk), "agent": config.get("agent_id"), "model": config.get("model")}
    return {**own, "provider": config.get("provider"), **more}


#: What a person has to do about a pause, by its reason. Pauses for other reasons need no notification: they come from
#: a person, from a policy with its own notification, or from a limit that a person set.
REMEDIES: dict[str, str] = {
    PauseReason.ERROR: "Remove the cause, then resume the run.",
    PauseReason.POISON_STEP: "Check what the tools of this step do, then resume the run or stop it.",
    PauseReason.ENGINE_ERROR: "Report the error with its traceback from the log, then resume the run or stop it.",
    PauseReason.FIXTURE_EXHAUSTED: "Fork the run with another model to continue, or stop it.",
    PauseReason.ANSWER_CUT: "Resume the run to continue the answer, or fork it with a higher `max_tokens`.",
    PauseReason.ANSWER_REFUSED: "Resume the run with a message that changes the request, or stop it.",
}
_REMEDY_OF_RESULT = "Resume the run with a message to the agent, or without one to accept the answer as the result."
#: The same for runs of durable functions, where it differs.
DURABLE_REMEDIES = dict.fromkeys((PauseReason.ANSWER_CUT, PauseReason.ANSWER_REFUSED), _REMEDY_OF_RESULT)


def notify_of_pause(run: AgentRun, payload: Payload, reason: str) -> None:
    """Notify the members of the project of a pause, in the transaction of the move.

    Does nothing for a pause that needs no person, or that a policy has made.
    """
    # Imported here: every command imports this module at its start, and pydantic takes long to load.
    from timeline.events.run import RunPaused

    remedy = (REMEDIES | DURABLE_REMEDIES if run.is_durable else REMEDIES).get(reason)
    if remedy is None or not isinstance(payload, RunPaused) or payload.by:
        return
    # Redacted before it is cut: half a secret would not be recognised.
    text, _ = REDACTOR.clean_text(payload.detail or "")
    # The text of an error may already contain the remedy.
    if "resume the run" not in text:
        text = "\n".join(filter(None, [text[: notifications.MAX_TEXT - len(remedy) - 1], remedy]))
    notify_members(run, notifications.Kind.PAUSED, "Paused", text)


def notify_members(run: AgentRun, kind: notifications.Kind, subject: str, text: str) -> Notification:
    """Notify the members of the run's project, in the caller's transaction. `text` is already redacted.

    The title is the subject with the name of the run.
    """
    title, _ = REDACTOR.clean_text(f"{subject}: {run.title or run.agent_config.get('agent_id') or run.pk}")
    return notifications.notify(run.project_id, kind=kind, title=title, text=text, run_id=run.pk)
