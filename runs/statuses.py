"""The statuses of runs and tool calls, the allowed transitions, and the reasons for waiting and pausing."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    """The statuses of runs."""

    QUEUED = "queued"  # any worker may claim it
    RUNNING = "running"  # a worker holds its lease
    WAITING = "waiting"  # has no worker; continues automatically or after an answer
    PAUSED = "paused"  # a person decides whether to resume it
    RESUMED = "resumed"  # continued by another run
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self in TERMINAL


STATUSES = {status.value: status for status in RunStatus}
TERMINAL = frozenset({RunStatus.RESUMED, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STOPPED})
LIVE = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING})

S = RunStatus
#: Status → the statuses to which a run may move from it.
MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    S.QUEUED: frozenset({S.RUNNING, S.PAUSED, S.STOPPED, S.FAILED}),
    S.RUNNING: frozenset({S.COMPLETED, S.FAILED, S.STOPPED, S.PAUSED, S.WAITING, S.QUEUED}),
    S.WAITING: frozenset({S.QUEUED, S.PAUSED, S.STOPPED, S.FAILED}),
    S.PAUSED: frozenset({S.RESUMED, S.STOPPED, S.FAILED}),
    S.RESUMED: frozenset(),
    S.COMPLETED: frozenset(),
    S.FAILED: frozenset(),
    S.STOPPED: frozenset(),
}


class PauseReason(StrEnum):
    """The reasons for which a run is paused."""

    MAX_STEPS = "max_steps"
    OPERATOR = "operator"
    ESCALATED = "escalated"
    LOG_LIMIT = "log_limit"
    BUDGET = "budget"
    ERROR = "error"
    FIXTURE_EXHAUSTED = "fixture_exhausted"
    POISON_STEP = "poison_step"  # the step killed its worker repeatedly, without other runs on the worker
    ENGINE_ERROR = "engine_error"  # an error inside agentops interrupted the step repeatedly; no process died
    ANSWER_CUT = "answer_cut"  # the model reached a limit of tokens before the end of its answer
    ANSWER_REFUSED = "answer_refused"  # the model refused, or a filter of the provider stopped the answer


class WaitReason(StrEnum):
    """The reasons for which a run waits."""

    APPROVAL = "approval"
    UNKNOWN_TOOL = "unknown_tool"
    INPUT = "input"
    CHILDREN = "children"
    COOLDOWN = "cooldown"
    TIMER = "timer"  # a durable function sleeps until `not_before`
    SIGNAL = "signal"  # a durable function waits for a signal, at most until `not_before`
    ON_ERROR = "on_error"  # a policy resumes it at `not_before`
    ON_DEAD = "on_dead"
    ON_CUT = "on_cut"
    ON_REFUSED = "on_refused"
    RETRY_ALONE = "retry_alone"  # its worker died in this step: the step is retried without other runs on the worker


class OnChildPause(StrEnum):
    """The effect of a child run's pause on the parent's call that waits for the child."""

    RETURN = "return"  # the pause is a result of the call
    WAIT = "wait"  # the call waits until the child run is resumed and has ended


#: Waits that end with a resume by a policy: another run continues, and this one is not queued again.
POLICY_WAITS = frozenset({WaitReason.ON_ERROR, WaitReason.ON_DEAD, WaitReason.ON_CUT, WaitReason.ON_REFUSED})

#: The reason if an error inside agentops returns a run to the queue, ends an attempt, or abandons a model call.
ENGINE_ERROR = PauseReason.ENGINE_ERROR.value

#: The end reasons of attempts whose worker did not release the run. "died": the lease expired, possibly together with
#: those of the worker's other runs. "died_alone": a process that executed only this run ended, as its worker observed.
#: "fenced": the worker was considered dead but was alive.
DIED, DIED_ALONE, FENCED = "died", "died_alone", "fenced"
DEATHS = (DIED, DIED_ALONE)
LOST = (*DEATHS, FENCED)
#: The end reasons of an attempt after which the next worker must handle a death.
AFTER_A_DEATH = (*LOST, WaitReason.RETRY_ALONE)


class Effect(StrEnum):
    """The effect of a tool. It determines whether a call with an unknown outcome is repeated after a crash."""

    READ = "read"  # changes nothing: the call is repeated
    IDEMPOTENT = "idempotent"  # recognises repeats by an idempotency key: the call is repeated
    AT_MOST_ONCE = "at_most_once"  # never repeated automatically: the outcome is unknown


class ToolStatus(StrEnum):
    """The statuses of tool calls."""

    PLANNED = "planned"  # committed with the assistant message, not started
    RUNNING = "running"  # committed before the tool is called
    COMPLETED = "completed"
    ERROR = "error"
    DENIED = "denied"  # never started: denied by a hook, by a person or by the end of the run
    UNKNOWN = "unknown"  # started by a worker that died: it may have taken effect


RESOLVED = frozenset({ToolStatus.COMPLETED, ToolStatus.ERROR, ToolStatus.DENIED, ToolStatus.UNKNOWN})
