"""A remote run as one request of its process holds it: its locked row, and the decisions that release it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import connection

from agentops.accounts.models import Project
from agentops.base.database.statements import locked, select
from runs.access import run_in
from runs.agents import call_rules, policies
from runs.agents.call_rules import ApprovalRule, InvalidPolicy
from runs.agents.policies import ErrorKind, Policies, Trigger
from runs.conversation import writes
from runs.conversation.writes import Commit
from runs.engine import ending, policy_acts, spending
from runs.engine.leases import Lease
from runs.engine.policy_acts import Complete, Occasion
from runs.engine.spending import Spending
from runs.hooks.deciding import ActiveHook, CallDecision
from runs.lifecycle import causes
from runs.models import AgentRun, AgentRunToolCall, RemoteStep
from runs.models.querysets import RunQuerySet
from runs.remote import facts
from runs.remote.facts import HeldFacts
from runs.statuses import RunStatus
from timeline.models import LeaseLost

_OPEN = "code_version IS NOT NULL AND removed_at IS NULL"
#: A run of a project that a durable function executes, by its ID.
_OF_PROJECT = f"id = %s AND project_id = %s AND is_packaged = %s AND {_OPEN}"
#: Several remote runs of a project.
_AMONG = f"project_id = %s AND NOT is_packaged AND {_OPEN}"


@dataclass
class RemoteHold:
    """A remote run whose row is locked until the end of the transaction, and whose lease belongs to the caller."""

    run: AgentRun
    lease: Lease
    #: Whether an operation has released the run, so that the process must not go on.
    is_released: bool = False
    #: The decisions of hooks about the calls of this request, by the key of the step. Empty until the hooks have
    #: decided; then the transaction is repeated.
    decisions: Mapping[str, CallDecision] = field(default_factory=dict)
    #: Whether the transaction is shared with operations of other runs.
    is_shared: bool = False
    #: Whether the commit of the current operation is written at its end, instead of at once.
    defers: bool = False
    #: Read for several runs at once: steps by their keys, and calls that no step has begun.
    known_steps: dict[str, RemoteStep | None] = field(default_factory=dict)
    known_calls: Sequence[AgentRunToolCall] | None = None
    #: The facts that were read after the lock of the run; None until it is needed.
    _facts: HeldFacts | None = field(default=None)
    #: The commit of the current operation, which `flush` writes.
    _unwritten: Commit | None = field(default=None)

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    def commit(self, write: Callable[[], None], *, is_committed: Callable[[], bool]) -> None:
        """Call `write` in the transaction of the request. After an error, the process repeats the request."""
        self.flush()
        write()
        self.is_released = True

    @property
    def config(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.run.agent_config)

    @cached_property
    def policies(self) -> Policies:
        """The agent's policies, as frozen in the run. Raises `InvalidPolicy`: see `is_released_by_rules`."""
        return policies.parse(self.config.get("policies") or {})

    @cached_property
    def approval_rules(self) -> tuple[tuple[ApprovalRule, ...], ...]:
        """The approval rules of the project, then of the agent. Raises `InvalidPolicy`."""
        return call_rules.of_project(self.run.project.settings), self.policies.approvals

    @cached_property
    def hooks(self) -> tuple[ActiveHook, ...]:
        """The hooks of the site and of the agent, in the order in which they are called."""
        return (*call_rules.of_site(), *self.policies.hooks)

    @cached_property
    def spending(self) -> Spending:
        """The budgets of the run and their use."""
        return spending.load(self.run)

    @property
    def pending(self) -> set[str]:
        """The types of the pending commands. None can arrive while the row of the run is locked."""
        return self.facts().pending

    def facts(self, *, with_calls: bool = False) -> HeldFacts:
        """Return the known facts about the run. `with_calls`: including its open calls."""
        if self._facts is None or (with_calls and self._facts.open_calls is None):
            self.flush()
            self._facts = facts.load([self.run.pk], with_calls=with_calls)[self.run.pk]
        return self._facts

    def know(self, read: HeldFacts) -> None:
        """Use facts that were read for several runs at once."""
        self._facts = read

    def forget_facts(self) -> None:
        """Read the facts again when they are needed, because rows were added without `write`."""
        self.flush()
        self._facts = None

    def next_position(self) -> int:
        """Return the position of the next message."""
        known = self.facts()
        known.message_position += 1
        return known.message_position

    def opens(self, calls: Sequence[AgentRunToolCall]) -> None:
        """Count new calls as open."""
        if self._facts is not None and self._facts.open_calls is not None:
            self._facts.open_calls |= {call.pk for call in calls}

    # --- The commit of an operation ---

    def write(self, commit: Commit) -> None:
        """Write a commit: at the end of an operation that defers, together with the steps that it adds or changes."""
        if not self.defers:
            writes.write(commit)
            return
        steps: Sequence[RemoteStep] = ()
        if self._unwritten is not None and self._unwritten.is_journal_only:
            steps, self._unwritten = self._unwritten.remote_steps, None
        self.flush()
        self._unwritten = replace(commit, remote_steps=(*steps, *commit.remote_steps))

    def add_step(self, step: RemoteStep) -> None:
        """Add a new step to the commit of the operation."""
        commit = self._begun_commit()
        self._unwritten = replace(commit, remote_steps=(*commit.remote_steps, step))

    def add_outcome(self, step: RemoteStep) -> None:
        """Add the outcome of a step to the commit of the operation."""
        if self._unwritten is not None and self._unwritten.outcome is not None:
            self.flush()
        self._unwritten = replace(self._begun_commit(), outcome=step)

    def _begun_commit(self) -> Commit:
        return self._unwritten or Commit(run_id=self.run.pk, epoch=self.epoch, events=())

    def flush(self) -> None:
        """Write the commit of the operation, if there is one."""
        if (commit := self.take()) is not None:
            writes.write(commit)

    def take(self) -> Commit | None:
        """Return the commit of the operation, which the caller has to write."""
        commit, self._unwritten = self._unwritten, None
        return commit


def lock(project: Project, run_id: UUID, epoch: int, *, is_packaged: bool = False) -> RemoteHold:
    """Lock a remote run for a request of its process. Raises `LeaseLost`, and the errors of `run_in`.

    `is_packaged`: a worker executes the run, not a remote run.
    """
    # FOR NO KEY UPDATE, as for commands: see runs.lifecycle.inbox.
    rows = select(AgentRun, locked(_OF_PROJECT, key=False), [run_id, project.pk, is_packaged])
    # Raises the error for an unknown, a deleted or another kind of run.
    run = rows[0] if rows else run_in(project, run_id, among=_among(is_packaged=is_packaged))
    _require_epoch(run, epoch)
    run.project = project
    return hold_of(run)


def lock_free(project: Project, epochs: Mapping[UUID, int]) -> dict[UUID, RemoteHold]:
    """Lock several remote runs, without those that are locked by others or not held at these epochs."""
    if not epochs:
        return {}
    if connection.vendor == "postgresql":
        condition = f"{locked(f'{_AMONG} AND id = ANY(%s) ORDER BY id', key=False)} SKIP LOCKED"
        parameters: list[object] = [project.pk, list(epochs)]
    else:
        ids = ", ".join(["%s"] * len(epochs))
        condition, parameters = f"{_AMONG} AND id IN ({ids})", [project.pk, *epochs]
    runs = [run for run in select(AgentRun, condition, parameters) if _is_held(run, epochs[run.pk])]
    for run in runs:
        run.project = project
    return {run.pk: replace(hold_of(run), is_shared=True) for run in runs}


def read(project: Project, run_id: UUID, epoch: int, *, is_packaged: bool = False) -> AgentRun:
    """Return a run that its process holds, without a lock. Raises what `lock` raises."""
    run = run_in(project, run_id, among=_among(is_packaged=is_packaged))
    _require_epoch(run, epoch)
    return run


def _among(*, is_packaged: bool) -> RunQuerySet:
    return AgentRun.objects.filter(is_packaged=True) if is_packaged else AgentRun.objects.remote()


def _require_epoch(run: AgentRun, epoch: int) -> None:
    if not _is_held(run, epoch):
        raise LeaseLost(f"the lease of run {run.pk} at epoch {epoch} is lost: the run is {run.status}")


def _is_held(run: AgentRun, epoch: int) -> bool:
    return run.lease_epoch == epoch and run.state is RunStatus.RUNNING


def hold_of(run: AgentRun) -> RemoteHold:
    """Return the hold of a run that the caller has claimed or locked."""
    # The epoch alone decides: until another process has claimed the run, a late request may still write.
    return RemoteHold(run, Lease(run.pk, run.lease_epoch, valid_until=float("inf")))


def follow_commands(hold: RemoteHold) -> bool:
    """Stop or pause the run if such a command is pending. Returns whether the run was released."""
    return bool(hold.pending & ending.STOP_OR_PAUSE) and ending.follow_command(hold) is not None


def is_released_by_rules(hold: RemoteHold) -> bool:
    """Pause a run whose policies or approval rules cannot be read, because it must not continue without them.

    Called for each claim. A pending stop or pause comes first. Returns whether the run was released.
    """
    try:
        _ = hold.approval_rules  # Reads the policies, too.
    except InvalidPolicy as error:
        if not follow_commands(hold):
            ending.pause_error(hold, "unusable_agent", str(error), context=causes.STEP)
        return True
    return False


def stop_at_limits(hold: RemoteHold, *, calls_model: bool) -> bool:
    """Release the run if its steps, or for a model call its budgets, are used up. Returns whether it was released."""
    run = hold.run
    if run.step_count >= run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS):
        detail = ending.steps_used(run)
        occasion = Occasion(Trigger.ON_ERROR, causes.MAX_TURNS, detail, detail, ErrorKind.MAX_TURNS)
        apply_policy(hold, occasion) or ending.pause_max_steps(hold)
    elif calls_model and (used_up := hold.spending.used_up()):
        ending.pause_budget(hold, used_up)
    return hold.is_released


def apply_policy(hold: RemoteHold, occasion: Occasion, *, complete: Complete | None = None) -> bool:
    """Apply the agent's rule for an occasion. Returns False without one. `complete`: see `policy_acts.act`.

    A gate is a program on this site that reads the conversation of a loaded run, so it is left out here.
    """
    rule = policies.rule_for(hold.policies, occasion.trigger, occasion.kind)
    if rule is None or rule.action is policies.PolicyAction.GATE:
        return False
    return policy_acts.act(hold, hold.policies, occasion, complete=complete) is not None


def facts_of_release(run: AgentRun) -> Mapping[str, str]:
    """Return the status of a released run and its reason, for the answer."""
    return {"status": run.status, "reason": run.status_reason}
