"""The session of a program that a worker holds for a run: a provider and a toolset for the step loop.

The program runs its own model calls and tools. The loop stores what it says as the answers, calls and results of any
other run, and lets each call begin only when it is stored as running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import StreamedResponse
from pydantic_ai.tools import ToolDefinition

from runs import chaos
from runs.conversation import ancestry
from runs.conversation.message_text import CONTINUE
from runs.conversation.transcript import Conversation
from runs.engine.event_loop import LoopThread
from runs.engine.leases import Lease
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.lifecycle.approval_rows import REQUEST_AGAIN
from runs.models import AgentRun, CliSession
from runs.providers.base import FollowUp, ModelCall
from runs.providers.claude_cli import blocks, program_command, transcripts
from runs.providers.claude_cli.failures import SessionFailed, SessionMissing
from runs.providers.claude_cli.process import kill_leftovers
from runs.providers.claude_cli.program_session import ProgramCommand, ProgramSession
from runs.providers.claude_cli.session_answer import TURN_ENDED, CliAnswer
from runs.tools import roots
from runs.tools.base import Arguments, Effect, OutcomeUnknown, Tool, ToolContext, ToolResult
from timeline import log
from timeline.events.run import RunSession as SessionEvent
from timeline.log import Entry
from timeline.models import Source

PROVIDER = "claude_cli"
PROGRAM = "Claude Code"
#: Seconds without a message after which a session has failed. The program repeats failed calls of its API itself.
IDLE_S = 900.0
#: Seconds for the end of a program: twice what runs.providers.claude_cli.process waits, and some more.
END_S = 15.0
WATCH_S = 0.25


@dataclass(frozen=True)
class _Launch:
    """A session to start, and whether it continues another."""

    command: ProgramCommand
    row: CliSession


class HeldSession:
    """The provider of a run that is a session of a program."""

    def __init__(self, run: AgentRun, lease: Lease, loop: LoopThread, conversation: Conversation) -> None:
        self._run, self._lease, self._loop, self._conversation = run, lease, loop, conversation
        self._session: ProgramSession | None = None
        #: The user messages of the conversation that the program knows.
        self._heard = 0
        #: Calls whose arguments a hook or a person has changed.
        self._changed: set[str] = set()
        #: Sessions that the program could not resume.
        self._missing: set[UUID] = set()

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        program_command.check(model, settings)

    def context_window(self, model: str) -> int | None:
        return None

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        """Return whether the program goes on after its last answer: its turn has no result yet."""
        last = self._conversation.history[-1] if self._conversation.history else None
        is_open = isinstance(last, ModelResponse) and not (last.provider_details or {}).get(TURN_ENDED)
        return FollowUp(more=is_open)

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        alive = self._session is not None and self._session.is_alive
        return self._answer(call, None if alive else self._prepare(call))

    # --- Calls of tools -----------------------------------------------------------------------------------------

    def run_call(self, ctx: ToolContext, arguments: Arguments) -> ToolResult:
        """Let the program run a call, and wait for its result."""
        session = self._session
        if session is None:
            raise OutcomeUnknown
        changed = dict(arguments) if ctx.call_id in self._changed and isinstance(arguments, Mapping) else None
        future = self._loop.submit(session.result_of(ctx.call_id, changed))
        result = _wait(future, ctx)
        if result is None:
            raise OutcomeUnknown
        return ToolResult(blocks.output_of(result.content), is_error=result.is_error, retryable=False)

    def knows(self, call_id: str) -> bool:
        """Whether the program that runs now has requested the call."""
        return self._session is not None and self._session.knows(call_id)

    def is_asking(self, call_id: str) -> bool:
        """Whether the program waits for the permission to run a call."""
        return self._session is not None and call_id in self._session.asking

    def prepare(self, call_id: str, *, is_allowed: bool, is_changed: bool) -> None:
        """Say what was decided of a call that runs next."""
        if is_allowed and self._session is not None:
            self._session.allow(call_id)
        if is_changed:
            self._changed.add(call_id)

    def permit(self, call_id: str) -> None:
        """Let the program run a call that is stored as running."""
        if self._session is not None:
            self._loop.submit(self._session.permit(call_id)).result(END_S)

    # --- The end ------------------------------------------------------------------------------------------------

    def end(self, *, gently: bool = True) -> None:
        """End the program: in its own way, so that its transcript is whole, or at once if the run is not ours."""
        session, self._session = self._session, None
        if session is not None:
            gently = gently and not self._lease.lost.is_set()
            self._loop.submit(session.close() if gently else session.kill()).result(END_S)

    # --- The beginning ------------------------------------------------------------------------------------------

    def _prepare(self, call: ModelCall) -> _Launch:
        """Choose the session to continue, and store the ID of the new one, before its program is started."""
        for run_id in filter(None, (self._run.pk, self._run.resumed_from_id)):
            kill_leftovers(str(run_id))
        # The transcript of a run that this one was forked from goes on after the fork.
        segments = [segment.run_id for segment in ancestry.segments_of(self._run) if segment.upto is None]
        config = self._config()
        earlier = (
            CliSession.objects.filter(run__in=segments).order_by("-created_at", "-id").values_list("id", flat=True)
        )
        known = [session_id for session_id in earlier if session_id not in self._missing]
        resumed = next((session_id for session_id in known if transcripts.path_of(config, session_id)), None)
        row = CliSession(
            id=uuid4(), run=self._run, resumed_id=resumed, epoch=self._lease.epoch, created_at=timezone.now()
        )
        self._store(row, lost=resumed is None and bool(earlier))
        chaos.point("session.stored")
        start = program_command.Start(str(row.pk), str(resumed) if resumed else None)
        words = program_command.command(call.model, call.settings, _instructions(call.history), start)
        environment = program_command.environment(str(self._run.pk), config)
        return _Launch(ProgramCommand(words, environment, self._folder(call.settings)), row)

    def _store(self, row: CliSession, *, lost: bool) -> None:
        resumed = str(row.resumed_id) if row.resumed_id else None
        event = SessionEvent(session_id=str(row.pk), program=PROGRAM, resumed=resumed, lost=lost or None)

        def write() -> None:
            with transaction.atomic():
                AgentRun.objects.filter(pk=self._run.pk).update(session_id=str(row.pk))
                log.append(self._run.pk, [Entry(event)], source=Source.WORKER, epoch=row.epoch)
                row.save(force_insert=True)

        existing = CliSession.objects.filter(pk=row.pk)
        commit_safely(write, is_committed=existing.exists, read_result=do_nothing, lease=self._lease)

    def _config(self) -> Path:
        """Return the program's own directory, one for each project: sessions of others are not found in it."""
        path: Path = settings.AGENTOPS_HOME / "claude" / str(self._run.project_id)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def _folder(self, agent_settings: Mapping[str, Any]) -> Path:
        """Return the working directory: the agent's root. Raises `RootRefused`."""
        allowed, relative = roots.locate(agent_settings.get("root"))
        return allowed / relative

    # --- An answer ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _answer(self, call: ModelCall, launch: _Launch | None) -> AsyncIterator[StreamedResponse]:
        said = _user_parts(call.history)
        try:
            if launch is not None:
                self._session = await ProgramSession.start(launch.command)
                chaos.point("session.started")
            assert self._session is not None
            await self._say(self._session, said, call.history, launch)
            yield CliAnswer(self._session, call.model)
        except SessionMissing:
            if launch is not None and launch.row.resumed_id is not None:
                self._missing.add(launch.row.resumed_id)
            raise
        except BaseException as error:
            if self._session is not None and not _is_reported(error, self._session):
                await self._session.kill()
            raise

    async def _say(
        self, session: ProgramSession, said: list[UserPromptPart], history: list[ModelMessage], launch: _Launch | None
    ) -> None:
        """Send what the program has not heard. Where that is nothing and it waits for a message, "continue"."""
        new = said[self._heard :]
        if launch is not None and launch.row.resumed_id is not None:
            path = transcripts.path_of(self._config(), launch.row.resumed_id)
            new = _not_written(_after_last_answer(history), path)
            if told := _told(history):
                new = [*told, *(new or [UserPromptPart(CONTINUE)])]
        reasons = {part.tool_call_id: _text(part) for part in _last_results(history)}
        for call_id in session.asking:
            await session.refuse(call_id, reasons.get(call_id, "not run: the run went on without this call"))
        self._heard = len(said)
        if new:
            await session.say(_joined(new))
        elif session.is_idle:
            await session.say(CONTINUE)


class SessionTools:
    """The toolset of a run that is a session: any tool, because the program knows which it has."""

    def __init__(self, session: HeldSession, agent_settings: Mapping[str, Any]) -> None:
        self._session = session
        self._settings = agent_settings

    def get(self, name: str) -> Tool:
        return Tool(
            name=name, description="", parameters_schema={}, execute=self._session.run_call,
            effect=Effect.AT_MOST_ONCE, timeout_s=None, needs_approval=program_command.asks_for(name, self._settings),
        )  # fmt: skip

    def definitions(self) -> list[ToolDefinition]:
        return []

    def open(self) -> None:
        """Do nothing: the program has its own servers."""

    def close(self) -> None:
        """Do nothing: `HeldSession.end` ends the program."""


def _is_reported(error: BaseException, session: ProgramSession) -> bool:
    """Whether the program itself has reported the failure, and lives: it gets a message, not a new process."""
    return isinstance(error, SessionFailed) and session.is_alive and session.is_idle


def _wait(future: Future[Any], ctx: ToolContext) -> Any:
    """Return the result, unless it is not wanted any more."""
    while True:
        try:
            return future.result(WATCH_S)
        except TimeoutError:
            if ctx.cancelled():
                future.cancel()
                raise OutcomeUnknown from None


def _instructions(history: list[ModelMessage]) -> str:
    parts = [part for message in history[:1] for part in message.parts if isinstance(part, SystemPromptPart)]
    return "\n\n".join(part.content for part in parts)


def _user_parts(history: list[ModelMessage]) -> list[UserPromptPart]:
    return [part for message in history for part in message.parts if isinstance(part, UserPromptPart)]


def _after_last_answer(history: list[ModelMessage]) -> list[UserPromptPart]:
    last = max((index for index, message in enumerate(history) if isinstance(message, ModelResponse)), default=-1)
    return _user_parts(history[last + 1 :])


def _last_results(history: list[ModelMessage]) -> list[ToolReturnPart]:
    last = history[-1] if history else None
    parts = last.parts if isinstance(last, ModelRequest) else ()
    return [part for part in parts if isinstance(part, ToolReturnPart)]


def _text(part: ToolReturnPart) -> str:
    return part.content if isinstance(part.content, str) else part.model_response_str()


def _told(history: list[ModelMessage]) -> list[UserPromptPart]:
    """Return what people decided of the last calls while no program ran: its transcript does not have it."""
    texts = [(part, _text(part)) for part in _last_results(history)]
    return [
        UserPromptPart(f"{part.tool_name}: {text}")
        for part, text in texts
        if part.outcome == "denied" or text.startswith(REQUEST_AGAIN)
    ]


def _not_written(parts: list[UserPromptPart], path: Path | None) -> list[UserPromptPart]:
    """Return the messages that the transcript does not have yet: the program has heard the others."""
    heard = set(transcripts.unanswered(path)) if path is not None else set()
    return [part for part in parts if part.content not in heard]


def _joined(parts: list[UserPromptPart]) -> str | list[dict[str, Any]]:
    """Return several messages as one, because the program takes each as a turn of its own."""
    if all(isinstance(part.content, str) for part in parts):
        return "\n\n".join(str(part.content) for part in parts)
    contents = [blocks.content_of(part.content) for part in parts]
    return [
        block
        for content in contents
        for block in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]
