"""A run that a worker holds: the state that it loaded, kept up to date from its own commits.

Only the step loop changes this state, from the results of its actions; see runs.engine.loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import Count, Min, QuerySet
from pydantic_ai.messages import ModelResponse, ToolReturnPart

from runs.agents import call_rules, policies
from runs.agents.call_rules import ApprovalRule
from runs.agents.output_schema import schema_of
from runs.agents.policies import Policies, Trigger
from runs.agents.prices import ModelPrice, readable_prices
from runs.conversation import repeats, transcript
from runs.conversation.tool_results import CallResult
from runs.conversation.transcript import Conversation
from runs.conversation.trimming import Context, window_of
from runs.database_errors import STORAGE_ERRORS, raise_unless_storage_error
from runs.engine import spending
from runs.engine.leases import Lease
from runs.engine.results import ApprovalNeeded, ModelFailed, Shutdown, ShutdownDue, StopPending
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.engine.sessions.held_session import PROVIDER as SESSIONS
from runs.engine.sessions.held_session import HeldSession, SessionTools
from runs.engine.spending import Spending
from runs.engine.turns.model_stream import LoopThread
from runs.engine.turns.running_calls import CallsAhead
from runs.hooks.base import TURN_EVENTS, HookEvent
from runs.hooks.deciding import ActiveHook
from runs.lifecycle import command_outcomes, places
from runs.lifecycle.causes import LLM_STREAM
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError
from runs.providers import base as providers
from runs.providers import loading, model_servers
from runs.providers.base import FollowUp
from runs.providers.retries import RetryLimits, retry_limits
from runs.statuses import ToolStatus
from runs.tools.base import Tool
from runs.tools.call_limits import parallel_limit
from runs.tools.catalogue import TOOLS, AgentTools
from runs.tools.front_end_tools import CONFIG_KEY, FrontEndTools
from timeline import log
from timeline.events import EventType
from timeline.log import Entry

#: Seconds between two checks for a stop command while the model or a tool runs.
STOP_CHECK_S = 1.0
#: Seconds between two checks for waiting runs, after the slice is over.
LOOK_FOR_OTHERS_S = 1.0
#: Statuses of calls that need a result.
OPEN = (ToolStatus.PLANNED, ToolStatus.RUNNING, ToolStatus.UNKNOWN)


@dataclass(frozen=True)
class FailedAttempts:
    """The failed attempts of the next model call, by any worker."""

    times: int = 0
    #: Time of the first failure; None without one.
    first_at: datetime | None = None


@dataclass
class Drive:
    """A run, its lease, and the state that its next step needs."""

    run: AgentRun
    lease: Lease
    loop: LoopThread
    shutdown: Shutdown
    provider: providers.Provider
    toolset: AgentTools | SessionTools
    #: The agent's rules for idle, failed and dead runs and for questions.
    policies: Policies
    #: Monotonic seconds.
    slice_end: float
    spending: Spending
    #: The JSON Schema that the result must match, if the agent has one.
    output_schema: dict[str, Any] | None
    #: The project's own prices, which replace published ones.
    prices: Sequence[ModelPrice]
    context: Context
    #: Called when the first step of this drive is committed.
    on_progress: Callable[[], None]
    conversation: Conversation
    #: The calls of the last answer that have no result, in the order of the answer.
    open_calls: list[AgentRunToolCall]
    #: Number of the last step with a checkpoint; 0 without one.
    checkpointed_step: int
    failed_attempts: FailedAttempts
    #: Steps committed by this drive. The slice is never over before the first one, even if loading took longer.
    committed_steps: int = 0
    #: The call whose unknown outcome a person has to resolve before the run can continue.
    unknown_call: AgentRunToolCall | None = None
    #: The program that executes the run; None if this process calls the run's model.
    session: HeldSession | None = None
    #: Open calls after the first one whose tools already run.
    ahead: CallsAhead = field(default_factory=CallsAhead)
    #: Results of a session's calls that were denied before they were the next open call, by the ID of their row.
    denied_ahead: dict[UUID, CallResult] = field(default_factory=dict)
    #: The row ID of a call that may open child runs, and the events of the permission.
    spawn_permit: tuple[UUID, Sequence[Entry]] | None = None
    #: Why the child runs of the next call could not be opened; empty otherwise.
    spawn_refusal: str = ""
    #: The failure of the model call, once this drive makes no further attempt: the run cools down, or gives up.
    model_failure: ModelFailed | None = None
    #: The call that has to wait for a person.
    needs_approval: ApprovalNeeded | None = None
    #: The hooks of the site and of the agent, in the order in which they are called.
    hooks: tuple[ActiveHook, ...] = ()
    #: The approval rules of the project, then of the agent.
    approval_rules: tuple[tuple[ApprovalRule, ...], ...] = ()
    #: The last step for which the hooks of an event were called, by event.
    hooks_asked: dict[HookEvent, int] = field(default_factory=dict)
    _next_stop_check: float = 0.0

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    def commit(self, write: Callable[[], None], *, is_committed: Callable[[], bool]) -> None:
        """Call `write` until it has committed once; see `commit_safely`."""
        commit_safely(write, is_committed=is_committed, read_result=do_nothing, lease=self.lease)

    @property
    def config(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.run.agent_config)

    @property
    def settings(self) -> dict[str, Any]:
        return self.config.get("settings") or {}

    @property
    def model(self) -> str:
        return str(self.config["model"])

    @property
    def model_server(self) -> str:
        """The host and port of the server that the agent names; empty for the vendor's server."""
        return model_servers.name_of(self.settings)

    @property
    def retry_limits(self) -> RetryLimits:
        return retry_limits(self.settings)

    @property
    def node(self) -> str:
        return node_of(self.config)

    def call_number(self, step: int) -> int:
        """Return the number of a step's model call, counted over all runs of a flow's node."""
        return step + int(self.config.get("calls_before") or 0)

    def follow_up(self, step: int) -> FollowUp:
        """Return what the provider has after the model call of a step: with a fixture, its further content."""
        return self.provider.follow_up(self.config["model"], self.node, self.call_number(step))

    def is_last_call_of_visit(self, follow_up: FollowUp) -> bool:
        """Whether a recorded call is the whole turn of a flow's node. Later recorded calls are for later visits."""
        return follow_up.is_turn and self.run.flow_run_id is not None

    def may_start_ahead(self, tool: Tool) -> bool:
        """Whether calls of this tool may run at the same time as other calls of their turn."""
        return tool.may_overlap and not self.may_be_blocked(tool)

    def may_be_blocked(self, tool: Tool) -> bool:
        """Whether a hook, a rule or the tool itself may deny a call of this tool, or require an approval."""
        has_hook = any(hook.applies_to(HookEvent.PRE_TOOL_USE, tool.name) for hook in self.hooks)
        return has_hook or tool.needs_approval or call_rules.may_stop(self.approval_rules, tool.name)

    def step_of(self, event: HookEvent) -> int:
        """Return the step for which the hooks of an event are due now."""
        is_before = event in (HookEvent.AGENT_START, HookEvent.TURN_START)
        return self.run.step_count + 1 if is_before else self.run.step_count

    def due_hooks(self) -> frozenset[HookEvent]:
        """Return the turn events that have hooks which were not yet called for the current step."""
        due = {
            event
            for event in TURN_EVENTS
            if any(hook.applies_to(event) for hook in self.hooks) and self.hooks_asked.get(event) != self.step_of(event)
        }
        if self.run.step_count > self.run.step_base:
            due.discard(HookEvent.AGENT_START)
        else:
            due.discard(HookEvent.TURN_END)
        return frozenset(due)

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is gone, or `ShutdownDue` if the process must end now."""
        self.lease.check()
        if self.shutdown.is_due:
            raise ShutdownDue

    def check_for_stop(self) -> None:
        """Call `check`, and raise `StopPending` if a stop is pending. Reads the inbox at most once a second.

        If the database does not answer, the current call continues for as long as the lease is valid.
        """
        self.check()
        if time.monotonic() >= self._next_stop_check:
            if self._is_stop_pending():
                raise StopPending
            self._next_stop_check = time.monotonic() + STOP_CHECK_S

    def _is_stop_pending(self) -> bool:
        try:
            return "stop" in command_outcomes.pending_types(self.run.pk)
        except STORAGE_ERRORS as error:
            raise_unless_storage_error(error)
            connection.close()
            return False

    @property
    def has_idle_policy(self) -> bool:
        """Whether an answer does not complete the run: its agent has an `on_idle` policy and a tool to end the run."""
        has_policy = bool(self.policies.rules.get(Trigger.ON_IDLE))
        return has_policy and any(self._ends(name) for name in self.config.get("tools") or [])

    @property
    def last_answer(self) -> ModelResponse | None:
        """Return the last answer of the conversation; None without any."""
        return next((m for m in reversed(self.conversation.history) if isinstance(m, ModelResponse)), None)

    def has_ending_call(self) -> bool:
        """Whether the last answer calls a tool that ends the run."""
        answer = self.last_answer
        return answer is not None and any(self._ends(call.tool_name) for call in answer.tool_calls)

    def ending_call(self) -> str | None:
        """Return the ID of the call that ended the run; None without one, or if the last turn has open calls."""
        if self.open_calls or self.conversation.last_role != AgentRunMessage.Role.TOOL_RESULT:
            return None
        results = [part for part in self.conversation.history[-1].parts if isinstance(part, ToolReturnPart)]
        ended = [part for part in results if part.outcome == "success" and self._ends(part.tool_name)]
        return ended[-1].tool_call_id if ended else None

    def _ends(self, name: str) -> bool:
        tool = self.toolset.get(name)
        return tool is not None and tool.ends

    def streak(self, call: AgentRunToolCall) -> int:
        """Return how many identical calls the model has made in a row, up to and including this one."""
        return repeats.streak(reversed(self.conversation.history), call.call_id)

    def is_release_due(self) -> bool:
        """Whether to release the run: the worker is ending, or the slice is over, no tool runs, and another run waits.

        The other run waits for a worker, or for the place of this run (`places`). A release ends the program of a
        session, so a session's turn is not interrupted.
        """
        if self.shutdown.requested.is_set():
            return True
        is_slice_over = self.committed_steps > 0 and time.monotonic() >= self.slice_end
        if not is_slice_over or self.ahead or (self.session is not None and self.open_calls):
            return False
        return (self.session is None or self.session.is_between_turns) and self._do_others_wait()

    def _do_others_wait(self) -> bool:
        """Whether a run waits for a worker of this queue, or for the place of this run. Checks once a second."""
        if settings.AGENTOPS_SLICE_S == 0:
            return True
        if places.do_others_wait(self.run):
            return True
        self.slice_end = time.monotonic() + LOOK_FOR_OTHERS_S
        return False

    def close(self) -> None:
        """Close what this worker opened for the run: tools that run ahead, the program, and the toolset."""
        self.ahead.abandon()
        self.end_program(gently=False)
        self.toolset.close()

    def end_program(self, *, gently: bool = True) -> None:
        """End the program of the run, if it has one: gently, or by killing it."""
        if self.session is not None:
            self.session.end(gently=gently)


def node_of(config: Mapping[str, Any]) -> str:
    """Return the name of a run in errors and fixtures: its agent's name, or the name of its flow node."""
    return str(config.get("node_id") or config.get("agent_id", "agent"))


def _load_library(config: Mapping[str, Any]) -> None:
    """Import the library of the model's vendor, so that the import does not count as time of the first model call.

    The process imports the libraries of existing agents when it starts; this is for later agents.
    """
    if config["provider"] == loading.VENDORS:
        loading.load(str(config["model"]).partition(":")[0])


def open_drive(
    run: AgentRun,
    lease: Lease,
    loop: LoopThread,
    shutdown: Shutdown,
    on_progress: Callable[[], None],
    *,
    is_new: bool = False,
) -> Drive:
    """Load a run for driving, and open its toolset. `is_new`: no worker has driven it, so it has no steps to load.

    Raises `LeaseLost` if another worker has taken the run over, and `LookupError`, `ValueError` or `TypeError` if the
    run's provider, tools, settings or conversation cannot be loaded.
    """
    config = run.agent_config
    provider = providers.get(config["provider"])
    _load_library(config)
    tool_settings = {**(config.get("settings") or {}), "model": config["model"], "node": node_of(config)}
    # Check these settings before the first write: both raise ValueError if they are invalid.
    retry_limits(tool_settings)
    parallel_limit(tool_settings)
    conversation = transcript.load(run)
    session = HeldSession(run, lease, loop, conversation) if config["provider"] == SESSIONS else None
    rules = policies.parse(config.get("policies") or {})
    hooks = (*call_rules.of_site(), *rules.hooks)
    drive = Drive(
        run=run,
        lease=lease,
        loop=loop,
        shutdown=shutdown,
        provider=session or provider,
        session=session,
        toolset=SessionTools(session, tool_settings) if session else _tools_of(config, tool_settings),
        policies=rules,
        slice_end=time.monotonic() + settings.AGENTOPS_SLICE_S,
        spending=spending.load(run),
        output_schema=schema_of(tool_settings),
        prices=readable_prices(run.project.settings),
        context=Context(window_of(tool_settings) or provider.context_window(config["model"])),
        on_progress=on_progress,
        conversation=conversation,
        open_calls=[] if is_new else list(open_calls(run)),
        checkpointed_step=0 if is_new else transcript.last_checkpoint(run),
        failed_attempts=FailedAttempts() if is_new else _failed_attempts(run),
        hooks=hooks,
        approval_rules=(call_rules.of_project(run.project.settings), rules.approvals),
        hooks_asked={} if is_new else _hooks_asked(run, hooks),
    )
    _open_tools(drive)
    return drive


def _tools_of(config: Mapping[str, Any], tool_settings: Mapping[str, Any]) -> AgentTools:
    return TOOLS.resolve(config.get("tools") or [], tool_settings, [FrontEndTools(config.get(CONFIG_KEY) or [])])


def _open_tools(drive: Drive) -> None:
    """Open the toolset of a loaded run. Closes it again if the run cannot be driven. Raises `LeaseLost`."""
    try:
        drive.toolset.open()
        # If the process was suspended between two queries and the run was taken over, the loaded rows are inconsistent.
        log.require_epoch(drive.run.pk, drive.epoch)
    except BaseException:
        drive.toolset.close()
        raise


def _failed_attempts(run: AgentRun) -> FailedAttempts:
    """Return the failed attempts of the next step's model call."""
    failures = RunError.objects.filter(run=run, step_number=run.step_count + 1, context=LLM_STREAM, call_id="")
    counts = failures.aggregate(times=Count("id"), first=Min("created_at"))
    return FailedAttempts(counts["times"], counts["first"])


def _hooks_asked(run: AgentRun, hooks: tuple[ActiveHook, ...]) -> dict[HookEvent, int]:
    """Return the last step for which the hooks of each turn event were called, from the log; no query without hooks."""
    if not any(hook.applies_to(event) for hook in hooks for event in TURN_EVENTS):
        return {}
    verdicts = log.events_of(run.pk).filter(
        type=EventType.HOOK_DECIDED, step__in=[run.step_count, run.step_count + 1], ref_id=None
    )
    return {
        HookEvent(payload["event"]): step
        for payload, step in verdicts.order_by("seq").values_list("payload", "step")
        if step is not None and payload.get("event") in TURN_EVENTS
    }


def open_calls(run: AgentRun) -> QuerySet[AgentRunToolCall]:
    """Return the calls without a result, in the order in which the model requested them."""
    return AgentRunToolCall.objects.filter(run=run, result_message=None, status__in=OPEN).order_by("step_number", "id")
