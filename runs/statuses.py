"""The statuses of runs and tool calls, and which move between them is allowed."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    QUEUED = "queued"  # any worker may claim it
    RUNNING = "running"  # a worker holds its lease
    WAITING = "waiting"  # no worker; the same run goes on by itself or after an answer
    PAUSED = "paused"  # someone decides whether to resume
    RESUMED = "resumed"  # went on as another run
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({RunStatus.RESUMED, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STOPPED})
LIVE = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING})

S = RunStatus
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
    """Why a paused run waits for someone's decision."""

    MAX_STEPS = "max_steps"
    OPERATOR = "operator"
    ESCALATED = "escalated"
    LOG_LIMIT = "log_limit"
    BUDGET = "budget"
    ERROR = "error"
    FIXTURE_EXHAUSTED = "fixture_exhausted"
    POISON_STEP = "poison_step"  # its step ended its worker again and again, with no other run beside it


class WaitReason(StrEnum):
    """What a waiting run waits for."""

    APPROVAL = "approval"
    UNKNOWN_TOOL = "unknown_tool"
    INPUT = "input"
    CHILDREN = "children"
    COOLDOWN = "cooldown"
    ON_ERROR = "on_error"  # its policy resumes it when its time has come
    ON_DEAD = "on_dead"
    RETRY_ALONE = "retry_alone"  # its worker died in this step before: tried again with nothing beside it


#: Waits that end by a policy's resume: the run goes on as another one, not in the queue.
POLICY_WAITS = frozenset({WaitReason.ON_ERROR, WaitReason.ON_DEAD})

#: How an attempt ended of which nobody gave the run back. "died": its lease ran out, with whatever other runs its
#: worker held. "died_alone": a process with this run alone ended, and the worker that had started it was there to see
#: it. "fenced": it was taken for dead, and was not.
DIED, DIED_ALONE, FENCED = "died", "died_alone", "fenced"
DEATHS = (DIED, DIED_ALONE)
LOST = (*DEATHS, FENCED)
#: Ends of the attempt before, after which a worker has to decide what becomes of a death.
AFTER_A_DEATH = (*LOST, WaitReason.RETRY_ALONE)


class Effect(StrEnum):
    """What may happen to a tool call whose outcome a crash has hidden; a tool declares it."""

    READ = "read"  # it changes nothing: run it again
    IDEMPOTENT = "idempotent"  # it is given a key by which a repeat is known: run it again
    AT_MOST_ONCE = "at_most_once"  # never again by itself: its outcome is unknown


class ToolStatus(StrEnum):
    PLANNED = "planned"  # committed with the assistant message, not started
    RUNNING = "running"  # committed before the call was made
    COMPLETED = "completed"
    ERROR = "error"
    DENIED = "denied"  # never started: a hook, an operator or the end of the run said no
    UNKNOWN = "unknown"  # started by a worker that died: nobody knows whether it took effect


RESOLVED = frozenset({ToolStatus.COMPLETED, ToolStatus.ERROR, ToolStatus.DENIED, ToolStatus.UNKNOWN})
