"""Notifications about paused runs that continue only when a person acts."""

from __future__ import annotations

from agentops.accounts import notifications
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun
from runs.statuses import PauseReason
from timeline.events import Payload
from timeline.events.run import RunPaused

#: The remedy for a person, by the reason of the pause. Other pauses come from a person, from a policy with its own
#: notification, or from a limit that a person set.
TO_DO: dict[str, str] = {
    PauseReason.ERROR: "Remove the cause, then resume the run.",
    PauseReason.POISON_STEP: "Check what the tools of this step do, then resume the run or stop it.",
    PauseReason.ENGINE_ERROR: "Report the error with its traceback from the log, then resume the run or stop it.",
    PauseReason.FIXTURE_EXHAUSTED: "Fork the run with another model to continue, or stop it.",
}


def notify(run: AgentRun, payload: Payload, reason: str) -> None:
    """Notify the members of the project of a pause, in the transaction of the move.

    A pause by a policy that resumes the run at once is not reported.
    """
    to_do = TO_DO.get(reason)
    if to_do is None or not isinstance(payload, RunPaused) or payload.by:
        return
    # Redacted before it is cut: half a secret is not recognised.
    title, _ = REDACTOR.clean_text(f"Paused: {run.title or run.agent_config.get('agent_id') or run.pk}")
    why, _ = REDACTOR.clean_text(payload.detail or "")
    # The text of an error may already contain the remedy.
    if "resume the run" not in why:
        why = "\n".join(filter(None, [why[: notifications.MAX_TEXT - len(to_do) - 1], to_do]))
    notifications.notify(run.project_id, kind=notifications.Kind.PAUSED, title=title, text=why, run_id=run.pk)
