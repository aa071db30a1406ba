"""A run in the hands of a worker: what it loaded once, and takes over from its own commits since.

Only the step loop changes it, by what the acts return; see runs.engine.loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from django.conf import settings
from django.db.models import Count, Min, QuerySet
from pydantic_ai.messages import ModelResponse, ToolReturnPart

from runs.agents import policies
from runs.agents.policies import OnCrash, Policies, Trigger
from runs.conversation import checkpoints, repeats, transcript
from runs.conversation.transcript import Conversation
from runs.conversation.trimming import Context, window_of
from runs.engine import spending
from runs.engine.event_loop import LoopThread
from runs.engine.leases import Lease
from runs.engine.results import NoAnswer
from runs.engine.spending import Spending
from runs.engine.stopping import LetGo, StopAsked, Stopping
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError
from runs.providers import base as providers
from runs.providers.retry_limits import RetryLimits, retry_limits
from runs.statuses import ToolStatus
from runs.tools.base import Toolset
from runs.tools.catalogue import TOOLS
from timeline import log

#: How long a stop may go unseen while the model or a tool is at work.
STOP_LOOK_S = 1.0
OPEN = (ToolStatus.PLANNED, ToolStatus.RUNNING, ToolStatus.UNKNOWN)


@dataclass(frozen=True)
class FailedAttempts:
    """The failed attempts of the next model call, by whichever worker."""

    times: int = 0
    #: When the first of them failed; None where none did.
    first_at: datetime | None = None


@dataclass
class Drive:
    run: AgentRun
    lease: Lease
    loop: LoopThread
    stopping: Stopping
    provider: providers.Provider
    toolset: Toolset
    #: What its agent wants done without anybody deciding it.
    policies: Policies
    slice_end: float
    spending: Spending
    context: Context
    #: Called once a step is committed.
    on_progress: Callable[[], None]
    conversation: Conversation
    #: The calls of the last answer that have no result yet, in its order.
    open_calls: list[AgentRunToolCall]
    #: The last step that has its checkpoint.
    checkpointed: int
    failed_attempts: FailedAttempts
    #: Steps that this drive has made: however long loading took, a slice is not over before the first.
    steps_made: int = 0
    #: The call whose outcome somebody has to declare before the run can go on.
    unknown_call: AgentRunToolCall | None = None
    #: Why the model is not asked again here.
    no_answer: NoAnswer | None = None
    _next_look: float = 0.0

    @property
    def epoch(self) -> int:
        return self.lease.epoch

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
    def limits(self) -> RetryLimits:
        return retry_limits(self.settings)

    @property
    def node(self) -> str:
        return str(self.config.get("agent_id", "agent"))

    @property
    def rolls_back(self) -> bool:
        """Whether a turn is taken back after a crash, as long as no tool of it was started: none is with the answer."""
        return self.policies.on_crash is OnCrash.ROLL_BACK

    def check(self) -> None:
        """Between and inside awaits: raises where the lease is gone or the process must end now."""
        self.lease.check()
        if self.stopping.over:
            raise LetGo

    def check_for_stop(self) -> None:
        """Inside awaits: `check`, and about once a second a look for a stop in the inbox."""
        self.check()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + STOP_LOOK_S
            if "stop" in inbox.waiting(self.run.pk):
                raise StopAsked

    @property
    def idles(self) -> bool:
        """Whether an answer alone does not complete the run: its agent has a policy for that, and can say that it is
        done."""
        wanted = bool(self.policies.rules.get(Trigger.ON_IDLE))
        return wanted and any(self._ends(name) for name in self.config.get("tools") or [])

    def says_done(self) -> bool:
        """Whether a call of the last answer may end the run."""
        answer = next((m for m in reversed(self.conversation.history) if isinstance(m, ModelResponse)), None)
        return answer is not None and any(self._ends(call.tool_name) for call in answer.tool_calls)

    def ending_call(self) -> str | None:
        """The id of the call by which the last turn has ended the run; all its calls have their results."""
        if self.open_calls or self.conversation.last_role != AgentRunMessage.Role.TOOL_RESULT:
            return None
        results = [part for part in self.conversation.history[-1].parts if isinstance(part, ToolReturnPart)]
        ended = [part for part in results if part.outcome == "success" and self._ends(part.tool_name)]
        return ended[-1].tool_call_id if ended else None

    def _ends(self, name: str) -> bool:
        tool = self.toolset.get(name)
        return tool is not None and tool.ends

    def streak(self, call: AgentRunToolCall) -> int:
        """How many identical calls in a row end with this open one."""
        return repeats.streak(reversed(self.conversation.history), call.call_id)

    def let_go(self) -> bool:
        return self.stopping.asked.is_set() or (self.steps_made > 0 and time.monotonic() >= self.slice_end)


def open_drive(
    run: AgentRun, lease: Lease, loop: LoopThread, stopping: Stopping, on_progress: Callable[[], None]
) -> Drive:
    """Load what the run needs, once per claim. Raises `LeaseLost` where somebody else has written meanwhile."""
    config = run.agent_config
    provider = providers.get(config["provider"])
    tool_settings = {**(config.get("settings") or {}), "model": config["model"]}
    retry_limits(tool_settings)  # what cannot be used is noticed before anything is done
    drive = Drive(
        run=run,
        lease=lease,
        loop=loop,
        stopping=stopping,
        provider=provider,
        toolset=TOOLS.resolve(config.get("tools") or [], tool_settings),
        policies=policies.parse(config.get("policies") or {}),
        slice_end=time.monotonic() + settings.AGENTOPS_SLICE_S,
        spending=spending.load(run),
        context=Context(window_of(tool_settings) or provider.context_window(config["model"])),
        on_progress=on_progress,
        conversation=transcript.load(run),
        open_calls=list(open_calls(run)),
        checkpointed=checkpoints.last_checkpoint(run),
        failed_attempts=_failed_attempts(run),
    )
    # Suspended between two of these queries, and taken over, it would have calls whose answer it has not read.
    log.require_epoch(run.pk, lease.epoch)
    return drive


def _failed_attempts(run: AgentRun) -> FailedAttempts:
    failures = RunError.objects.filter(run=run, step_number=run.step_count + 1, context="llm")
    failed = failures.aggregate(times=Count("id"), first=Min("created_at"))
    return FailedAttempts(failed["times"], failed["first"])


def open_calls(run: AgentRun) -> QuerySet[AgentRunToolCall]:
    """Calls without a result, in the order in which the model asked."""
    return AgentRunToolCall.objects.filter(run=run, result_message=None, status__in=OPEN).order_by("step_number", "id")
