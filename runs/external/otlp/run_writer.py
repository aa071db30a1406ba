"""Writes the work in a group (a trace or a session) into its runs, as the events of external runs.

The run of a trace has the reference `otlp:<trace>`, a child run `otlp:<trace>:<span>`, and the run of a session
`otlp:<program>:<session>`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from agentops.accounts.models import Project
from runs.conversation.transcript import text_of
from runs.external import contents, handlers
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.importers.conversation import ChatMessage, ImportedConversation
from runs.external.message_events import prompt_columns
from runs.external.model_calls import CallReports
from runs.external.projection import Projection
from runs.lifecycle import reported_runs
from runs.lifecycle.reported_runs import ReportedRun
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import RunStatus, WaitReason
from timeline.events import Payload
from timeline.events.notice import Error
from timeline.events.run import RunCompleted, RunFailed, RunPhase, RunStarted, RunStopped, RunWaiting
from timeline.models import Source

_REQUESTS = (AgentRunMessage.Role.SYSTEM, AgentRunMessage.Role.USER)


@dataclass
class RunWriter:
    """A run that receives new work. The caller has locked the group, and calls `flush` at the end."""

    run: AgentRun
    projection: Projection
    conversation: ImportedConversation
    #: The sender of the work.
    by: str
    #: Whether the run has a user message.
    has_request: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_request = self.run.prompt is not None

    @classmethod
    def load(cls, run: AgentRun, by: str) -> RunWriter:
        """Lock a run, and load the state that its next events continue."""
        run = AgentRun.objects.select_for_update(no_key=True, of=("self",)).select_related("project").get(pk=run.pk)
        calls = AgentRunToolCall.objects.filter(run=run, result_message=None).order_by("step_number", "id")
        conversation = ImportedConversation(
            str(run.external_id or run.pk),
            open_calls={call.call_id: contents.call_part(call.call_id, call.tool_name, call.input) for call in calls},
        )
        requests = AgentRunMessage.objects.filter(run=run, role__in=_REQUESTS)
        for role, content in requests.values_list("role", "content"):
            conversation.remember(ChatMessage(role=cast("Any", role), content=text_of(content)))
        projection = Projection.load(run, Source.INGEST)
        projection.calls = CallReports(run)
        return cls(run, projection, conversation, by)

    @classmethod
    def open(cls, project: Project, reported: ReportedRun, session_id: str) -> RunWriter:
        """Open a run and start it. If another run has the reference, the new run gets none."""
        if reported_runs.id_of_external(project, str(reported.external_id)) is not None:
            reported = replace(reported, external_id=None)
        run = reported_runs.open_run(project, reported)
        writer = cls.load(run, reported.by)
        writer.report(RunStarted(session_id=session_id or None, model=reported.model or None), reported.created_at)
        return writer

    def apply(self, events: Iterable[IncomingEvent]) -> None:
        """Apply events to the run. A waiting run continues."""
        if self.run.state is RunStatus.WAITING:
            self.report(RunPhase(status="running", reason="continued"), None)
        for event in events:
            if event.call_names:
                self.calls.begin([event])
            try:
                handlers.apply(self.projection, event)
            except RejectedEvent:
                continue  # the event refers to a call that the run does not have

    def apply_request(self, events: Iterable[IncomingEvent]) -> None:
        """Apply the messages of a request to a model.

        In the first request of a run, the last user message is the prompt. Those before it belong to the conversation
        that the program continues.
        """
        is_first, title = self.run.prompt is None, self.run.title
        self.apply(events)
        prompt = self.projection.newest_user_message if is_first else None
        if prompt is not None:
            self.projection.change_run(**prompt_columns(prompt, title=title))

    @property
    def calls(self) -> CallReports:
        """The model calls that the run reports in this transaction."""
        assert self.projection.calls is not None
        return self.projection.calls

    def report(self, payload: Payload, at: datetime | None) -> None:
        """Apply an event about the status of the run."""
        handlers.apply(self.projection, IncomingEvent.of(self.conversation.run_ref, payload, ts=at))

    def flush(self) -> None:
        """Write the collected changes, in the caller's transaction."""
        self.projection.flush()
        state = self.projection.state
        state.sender, state.silent_since = self.by[:200] or state.sender, None
        self.projection.save_state()

    def end(
        self, at: datetime, *, error: tuple[str, str] | None = None, result: str | None = None, is_stopped: bool = False
    ) -> None:
        """Report the end of the run, unless it has already ended. The outcome of calls without a result is unknown.

        `error`: the type and the text of the failure or, with `is_stopped`, of the reason for the stop.
        """
        if self.run.is_final:
            return
        self.conversation.number_from("end:")
        self.apply(self.conversation.close())
        if is_stopped:
            self.report(RunStopped(reason=error[0] if error else None), at)
        elif error is not None:
            kind, text = error
            self.report(Error(error_type=kind, error=text), at)
            self.report(RunFailed(error_type=kind, error=text), at)
        else:
            self.report(RunCompleted(result=result), at)

    def wait(self, at: datetime) -> None:
        """Set a running run to waiting, because it has been silent for a long time and may continue."""
        if self.run.state is RunStatus.RUNNING:
            self.report(RunWaiting(reason=WaitReason.INPUT), at)
