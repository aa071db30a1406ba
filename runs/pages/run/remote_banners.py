"""The banners of runs of durable functions: which process, worker or signal is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from agentops.base import database_clock
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.pages.run.banner import AwaitedSignal, Banner
from runs.queries.remote_processes import Lack, Offers
from runs.statuses import PauseReason
from timeline.display import clean

#: Seconds in the queue after which a missing process is reported; a process looks for runs every few seconds.
PROCESS_EXPECTED_S = 15
#: Number of code versions that a banner names.
MAX_VERSIONS = 10
#: Number of undelivered signals that a banner names.
MAX_NAMED = 5
_RESULT_IS_ANSWER = (
    "A resumed run accepts the answer as its result. With a message, an agent that takes messages continues after the "
    "answer instead."
)
#: Reason of a pause → what to do about it, where it differs from other runs.
DURABLE_PAUSE_TEXTS: dict[str, str] = {
    PauseReason.ERROR: "The function raised an error. Remove its cause, then resume the run: stored steps are not "
    "repeated, and the step that failed runs again.",
    PauseReason.ANSWER_CUT: _RESULT_IS_ANSWER,
    PauseReason.ANSWER_REFUSED: _RESULT_IS_ANSWER,
}
#: The same for remote runs.
PAUSE_TEXTS: dict[str, str] = {
    **DURABLE_PAUSE_TEXTS,
    PauseReason.POISON_STEP: "The process died each time it executed this step. Find out why in its output, then "
    "resume or stop the run.",
}
#: Type of a pending command → head and text of the banner.
REQUESTS: dict[str, tuple[str, str]] = {
    RunCommand.Type.STOP: ("Stop requested", "The process stops the run within a few seconds."),
    RunCommand.Type.PAUSE: ("Pause requested", "The process pauses the run within a few seconds."),
}


def queued(run: AgentRun, agent: str, banner: Banner) -> Banner:
    """Return the banner of a queued remote run: which process it needs, if no living process can claim it.

    `agent`: the name of its agent. `banner`: the banner without the name of a process.
    """
    unserved = Offers(run.project).lack(agent, run.code_version, run.queue)
    if unserved is None:
        return _unclaimed(run, banner)
    head = unserved.text(agent, run.code_version, run.queue)
    match unserved.lack:
        case Lack.AGENT:
            text = "Start a process whose code has this agent, with an API key of this project that has the scope work."
        case Lack.VERSION:
            versions = ", ".join(map(str, unserved.versions[-MAX_VERSIONS:]))
            text = (
                f"Processes have {'version' if len(unserved.versions) == 1 else 'the versions'} {versions}. A run needs"
                " the version of the code with which it began. Start a process with that version."
            )
        case Lack.QUEUE:
            text = "Start a process that serves this queue, or give the agent another queue."
    return replace(banner, level="warn", head=head[:1].upper() + head[1:], text=f"{banner.text} {text}".lstrip())


def without_code(run: AgentRun, agent: str, banner: Banner) -> Banner | None:
    """Return the banner of a queued run of a package that no living worker can claim; None if one can.

    `agent` and `banner`: as in `queued`.
    """
    unserved = Offers(run.project, is_packaged=True).lack(agent, run.code_version, run.queue)
    if unserved is None:
        return None
    head = unserved.text(agent, run.code_version, run.queue)
    match unserved.lack:
        case Lack.AGENT:
            text = (
                "Install the package with this agent for the workers, and restart them. If AGENTOPS_AGENT_PROJECTS is "
                "set, it must name this project."
            )
        case Lack.VERSION:
            text = (
                "A run needs the version of the code with which it began. Install a package that has this version too, "
                "and restart the workers."
            )
        case Lack.QUEUE:
            text = "Start such a worker for this queue, or give the agent another queue."
    return replace(banner, level="warn", head=head[:1].upper() + head[1:], text=f"{banner.text} {text}".lstrip())


def _unclaimed(run: AgentRun, banner: Banner) -> Banner:
    """Return the banner of a queued run that a living process can claim."""
    if database_clock.now() - run.queued_at < timedelta(seconds=PROCESS_EXPECTED_S):
        return banner
    text = f"{banner.text} A process offers this agent and version. Its places may all be taken.".lstrip()
    return replace(banner, level="warn", head="No process has claimed this run yet", text=text)


def undelivered_signals(pending: Sequence[RunCommand]) -> list[Banner]:
    """Return a banner that names the signals in the inbox, which the code of the run does not wait for yet."""
    names = [
        clean(str(command.payload.get("name") or "")) for command in pending if command.type == RunCommand.Type.SIGNAL
    ]
    if not names:
        return []
    head = "1 undelivered signal" if len(names) == 1 else f"{len(names)} undelivered signals"
    named = ", ".join(dict.fromkeys(names[:MAX_NAMED])) + (", …" if len(names) > MAX_NAMED else "")
    text = f"The run receives a signal when its code waits for it: {named}."
    return [Banner(level="info", icon="send", head=head, text=text)]


def awaited_signal(run: AgentRun, banner: Banner) -> Banner:
    """Add the name of the signal that a run waits for, and the form that sends it."""
    call = AgentRunToolCall.objects.filter(run=run, result_message=None, remote_step__kind="signal").first()
    arguments = call.input if call is not None and isinstance(call.input, dict) else {}
    name = str(arguments.get("signal") or "")
    if not name:
        return banner
    timeout = " If it does not arrive in time, the step fails." if run.not_before is not None else ""
    return replace(
        banner,
        level="info",
        head=f"Waiting for the signal {clean(name)}",
        text=f"The run continues when a program or a person sends the signal.{timeout}",
        signal=AwaitedSignal(name, clean(name)),
    )
