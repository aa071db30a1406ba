"""The session of a program that a worker holds for a run: a provider and a toolset for the step loop.

The program makes the model calls and runs the tools itself. The loop stores its output as answers, calls and results,
as for any other run. The program may start a call only after it is stored as running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from pydantic_ai.messages import ModelMessage, ModelResponse, UserPromptPart
from pydantic_ai.models import StreamedResponse
from pydantic_ai.tools import ToolDefinition

from agentops.base import database_clock
from runs import chaos
from runs.agents.prices import ModelPrice
from runs.conversation.transcript import CONTINUE, Conversation
from runs.engine.leases import Lease
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.engine.sessions import session_messages, subagents
from runs.engine.sessions.reported_costs import ReportedCosts
from runs.engine.sessions.subagents import SubagentWaits
from runs.engine.turns.model_stream import LoopThread
from runs.models import AgentRun, CliSession, TurnUsage
from runs.providers.base import FollowUp, ModelCall
from runs.providers.claude_cli import blocks, claude_provider
from runs.providers.claude_cli.process import kill_leftovers
from runs.providers.claude_cli.program_messages import CallVerdict, SessionFailed, SessionMissing, SubagentRequest
from runs.providers.claude_cli.program_session import ProgramCommand, ProgramSession
from runs.providers.claude_cli.session_answer import TURN_ENDED, CliAnswer
from runs.providers.messages import canonical
from runs.statuses import RunStatus, ToolStatus
from runs.tools import rooted_files
from runs.tools.base import Arguments, Effect, OutcomeUnknown, Tool, ToolContext, ToolResult
from timeline import log
from timeline.events.run import RunSession as SessionEvent
from timeline.log import Entry
from timeline.models import LeaseLost, Source

PROVIDER = "claude_cli"
PROGRAM = "Claude Code"
#: Seconds without a message after which a session has failed. The program repeats failed calls of its API itself.
IDLE_S = 900.0
#: Seconds for the end of a program: twice the wait of runs.providers.claude_cli.process, plus a margin.
END_S = 15.0
#: Seconds between two checks whether a call was cancelled.
WATCH_S = 0.25
#: The final status of a sub-agent, by the status of the call that it worked for.
SUBAGENT_ENDS = {ToolStatus.COMPLETED: RunStatus.COMPLETED, ToolStatus.ERROR: RunStatus.FAILED}


@dataclass(frozen=True)
class _Launch:
    """A session to start. Its row names the session that it continues, if any."""

    command: ProgramCommand
    row: CliSession


class HeldSession:
    """The provider of a run that is a session of a program."""

    def __init__(self, run: AgentRun, lease: Lease, loop: LoopThread, conversation: Conversation) -> None:
        self._run, self._lease, self._loop, self._conversation = run, lease, loop, conversation
        self._session: ProgramSession | None = None
        #: How many user messages of the conversation the program has received.
        self._sent_count = 0
        #: The verdicts on calls of the main agent, by call ID.
        self._verdicts: dict[str, CallVerdict] = {}
        self._subagents = subagents.records_of(run.pk, lease.epoch)
        self._may_have_subagents = True
        self._costs = ReportedCosts(run)
        #: The verdicts on calls of sub-agents, by call ID.
        self.subagent_verdicts: dict[str, CallVerdict] = {}
        #: The calls of sub-agents that wait for a person.
        self.subagent_waits = SubagentWaits(run, lease)
        #: IDs of sessions that the program could not resume.
        self._missing: set[UUID] = set()

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        claude_provider.check(model, settings)

    def context_window(self, model: str) -> int | None:
        return None

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        """Return a follow-up with `more` if the program continues after its last answer: its turn has no result yet."""
        last = self._conversation.history[-1] if self._conversation.history else None
        is_open = isinstance(last, ModelResponse) and not (last.provider_details or {}).get(TURN_ENDED)
        return FollowUp(more=is_open)

    @property
    def is_between_turns(self) -> bool:
        """Whether the program waits for a message, so that another process can continue the session without loss."""
        return self._session is not None and self._session.is_idle

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        alive = self._session is not None and self._session.is_alive
        return self._answer(call, None if alive else self._prepare(call))

    # --- Calls of tools -----------------------------------------------------------------------------------------

    def run_call(self, ctx: ToolContext, arguments: Arguments) -> ToolResult:
        """Permit the program to run a call, and wait for its result. Raises `OutcomeUnknown` if there will be none."""
        session = self._session
        if session is None:
            raise OutcomeUnknown
        verdict = self._verdicts.get(ctx.call_id, CallVerdict())
        result = _wait(self._loop.submit(session.result_of(ctx.call_id, verdict)), ctx)
        if result is None:
            raise OutcomeUnknown
        return ToolResult(blocks.output_of(result.content), is_error=result.is_error, retryable=False)

    def knows(self, call_id: str) -> bool:
        """Whether the current program has requested the call."""
        return self._session is not None and self._session.knows(call_id)

    def is_asking(self, call_id: str) -> bool:
        """Whether the program waits for permission to run the call."""
        return self._session is not None and call_id in self._session.asking

    def keep_verdict(self, call_id: str, verdict: CallVerdict) -> None:
        """Keep the verdict on the next call to run: `run_call` sends it."""
        self._verdicts[call_id] = verdict

    def send_verdict(self, call_id: str, verdict: CallVerdict) -> None:
        """Send the verdict on a call at once. The call is already stored as running, or as denied."""
        self._verdicts[call_id] = verdict
        if self._session is not None:
            self._loop.submit(self._session.decide(call_id, verdict)).result(END_S)

    # --- Reports at the end of a turn ---

    def settle_cost(self, usage: TurnUsage, answer: ModelResponse, prices: Sequence[ModelPrice]) -> list[TurnUsage]:
        """Complete the cost of an answer by the program's report. Returns usage that no answer includes, by model."""
        self.store_subagent_lines()
        return self._costs.settle(usage, answer, process=self._session, prices=prices)

    def structured_output(self) -> str | None:
        """Return the value that the program produced for the agent's schema, as JSON; None without one."""
        last = self._conversation.history[-1] if self._conversation.history else None
        value = (last.provider_details or {}).get("structured_output") if isinstance(last, ModelResponse) else None
        return None if value is None else canonical(value)

    # --- Sub-agents ---------------------------------------------------------------------------------------------

    def store_subagent_lines(self) -> None:
        """Store the lines that the program's sub-agents have written since these were last stored."""
        lines = self._session.take_subagent_lines() if self._session is not None else []
        if lines:
            self._write_records(partial(self._subagents.add, lines))
            chaos.point("session.subagent_stored")

    def end_subagent(self, call_id: str, status: ToolStatus) -> None:
        """End the record of the sub-agent that worked for a call, if there is one."""
        self.store_subagent_lines()
        self._write_records(partial(self._subagents.end, call_id, SUBAGENT_ENDS.get(status, RunStatus.STOPPED)))

    def _end_subagents(self) -> None:
        """End the records of the sub-agents of ended programs, also of a program that died with an earlier worker."""
        if self._may_have_subagents:
            self._write_records(self._subagents.end_all)
            self._may_have_subagents = False

    def _write_records(self, write: Callable[[], None]) -> None:
        # Need not know whether the commit succeeded: each line has an ID, so a repeated write stores nothing twice.
        commit_safely(write, is_committed=lambda: False, read_result=do_nothing, lease=self._lease)

    def take_subagent_requests(self) -> list[SubagentRequest]:
        """Return the new requests about calls of sub-agents. Each needs an answer."""
        return self._session.take_subagent_requests() if self._session is not None else []

    def take_withdrawn(self) -> set[str]:
        """Return the IDs of the requests that the program has withdrawn since these were last taken."""
        return self._session.take_withdrawn() if self._session is not None else set()

    def answer_subagent(self, request: SubagentRequest, verdict: CallVerdict) -> None:
        """Keep the verdict on a sub-agent's call, and send it."""
        self.subagent_verdicts[request.call_id] = verdict
        if self._session is not None:
            self._loop.submit(self._session.answer_subagent(request, verdict)).result(END_S)

    # --- The end ------------------------------------------------------------------------------------------------

    def end(self, *, gently: bool = True) -> None:
        """End the program: gently, so that its transcript is complete, or by killing it.

        A program is always killed if another worker holds the run.
        """
        session = self._session
        if session is not None:
            gently = gently and not self._lease.lost.is_set()
            self._loop.submit(session.close() if gently else session.kill()).result(END_S)
        with suppress(LeaseLost):
            self.store_subagent_lines()
            self._end_subagents()
        self._session = None
        self.subagent_waits = SubagentWaits(self._run, self._lease)

    # --- The start ----------------------------------------------------------------------------------------------

    def _prepare(self, call: ModelCall) -> _Launch:
        """Choose the session to continue, store the new session, and return the command that starts its program."""
        for run_id in filter(None, (self._run.pk, self._run.resumed_from_id)):
            kill_leftovers(str(run_id))
        self._end_subagents()
        self._may_have_subagents = True
        config = self._config_directory()
        earlier = session_messages.find_earlier(self._run, config, missing=self._missing)
        resumed = earlier.session_id
        row = CliSession(
            id=uuid4(), run=self._run, resumed_id=resumed, epoch=self._lease.epoch, created_at=database_clock.now()
        )
        has_answers = any(isinstance(message, ModelResponse) for message in call.history)
        self._store(row, lost=resumed is None and has_answers, is_cut=earlier.is_cut)
        chaos.point("session.stored")
        start = claude_provider.Start(str(row.pk), str(resumed) if resumed else None)
        words = claude_provider.command(call.model, call.settings, session_messages.instructions(call.history), start)
        environment = claude_provider.environment(str(self._run.pk), str(row.pk), config)
        allowed, relative = rooted_files.locate_root(call.settings.get("root"))
        return _Launch(ProgramCommand(words, environment, allowed / relative), row)

    def _store(self, row: CliSession, *, lost: bool, is_cut: bool) -> None:
        """Store a session. `lost`: its program does not know the earlier answers; `is_cut`: see `EarlierSession`."""
        resumed = str(row.resumed_id) if row.resumed_id else None
        event = SessionEvent(
            session_id=str(row.pk),
            program=PROGRAM,
            resumed=resumed,
            lost=lost or None,
            cause="earlier_checkpoint" if lost and is_cut else None,
        )

        def write() -> None:
            with transaction.atomic():
                AgentRun.objects.filter(pk=self._run.pk).update(session_id=str(row.pk))
                log.append(self._run.pk, [Entry(event)], source=Source.WORKER, epoch=row.epoch)
                row.save(force_insert=True)

        existing = CliSession.objects.filter(pk=row.pk)
        commit_safely(write, is_committed=existing.exists, read_result=do_nothing, lease=self._lease)

    def _config_directory(self) -> Path:
        """Create and return the program's config directory. Projects have separate ones, so they share no sessions."""
        path: Path = settings.AGENTOPS_HOME / "claude" / str(self._run.project_id)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    # --- An answer ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _answer(self, call: ModelCall, launch: _Launch | None) -> AsyncIterator[StreamedResponse]:
        """Yield the stream of an answer. Starts the program if `launch` is given, and kills it after most errors."""
        try:
            if launch is not None:
                self._session = await ProgramSession.start(launch.command)
                chaos.point("session.started")
            assert self._session is not None
            await self._send_messages(self._session, call.history, launch)
            yield CliAnswer(self._session, call.model)
        except SessionMissing:
            if launch is not None and launch.row.resumed_id is not None:
                self._missing.add(launch.row.resumed_id)
            raise
        except BaseException as error:
            if self._session is not None and not _is_reported(error, self._session):
                await self._session.kill()
            raise

    async def _send_messages(
        self, session: ProgramSession, history: list[ModelMessage], launch: _Launch | None
    ) -> None:
        """Deny the calls that the program still asks about, and send the messages that it has not received.

        Without a new message, a program that waits for a message gets "continue".
        """
        user_parts = session_messages.user_parts(history)
        new = user_parts[self._sent_count :]
        if launch is not None and launch.row.resumed_id is not None:
            path = blocks.transcript_path(self._config_directory(), launch.row.resumed_id)
            decisions = session_messages.missed_decisions(history)
            messages = session_messages.after_last_answer(history)
            new = session_messages.not_in_transcript([*decisions, *messages], path)
            if new and not messages:
                new.append(UserPromptPart(CONTINUE))
        reasons = {part.tool_call_id: session_messages.text_of(part) for part in session_messages.last_results(history)}
        for call_id in session.asking:
            reason = reasons.get(call_id, "not run: the run went on without this call")
            await session.decide(call_id, CallVerdict(denied=reason))
        self._sent_count = len(user_parts)
        if new:
            await session.say(session_messages.as_one_message(new))
        elif session.is_idle:
            await session.say(CONTINUE)
        chaos.point("session.said")


class SessionTools:
    """The toolset of a session's run. It accepts any tool name, because only the program knows its tools."""

    def __init__(self, session: HeldSession, agent_settings: Mapping[str, Any]) -> None:
        self._session = session
        self._settings = agent_settings

    def get(self, name: str) -> Tool:
        if name == session_messages.ASK:
            return session_messages.ASK_TOOL
        return Tool(
            name=name,
            description="",
            parameters_schema={},
            execute=self._session.run_call,
            effect=Effect.AT_MOST_ONCE,
            timeout_s=None,
            needs_approval=claude_provider.asks_for(name, self._settings),
        )

    def definitions(self) -> list[ToolDefinition]:
        return []

    def open(self) -> None:
        """Do nothing: the program has its own servers."""

    def close(self) -> None:
        """Do nothing: `HeldSession.end` ends the program."""


def _is_reported(error: BaseException, session: ProgramSession) -> bool:
    """Whether the program itself reported the failure and waits for a message: then no new process is needed."""
    return isinstance(error, SessionFailed) and session.is_alive and session.is_idle


def _wait(future: Future[Any], ctx: ToolContext) -> Any:
    """Wait for a result of the event loop. Raises `OutcomeUnknown` if the call is cancelled."""
    while not wait([future], WATCH_S).done:
        if ctx.cancelled():
            future.cancel()
            raise OutcomeUnknown
    return future.result()
