"""The step loop, top to bottom: claim, load, then decide and act until the run waits, ends or is handed back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import Error, connection, transaction
from django.utils import timezone
from pydantic_ai.messages import UserPromptPart

from runs import chaos
from runs.conversation import repeats, transcript
from runs.engine import decisions, ending, model_turn, policy_acts, rollback, tool_turn
from runs.engine.decisions import Next
from runs.engine.drive import Drive, LetGo, StopAsked, Stopping, open_drive
from runs.engine.event_loop import LoopThread
from runs.engine.leases import Keeper, Lease, clock
from runs.engine.model_turn import Cooldown, GaveUp
from runs.engine.safe_commit import nothing
from runs.engine.storage_errors import STORAGE, pass_others_on
from runs.lifecycle import inbox, transitions
from runs.lifecycle.command_outcomes import mark_applied
from runs.lifecycle.transitions import Claimed
from runs.models import AgentRun, AgentRunMessage, Checkpoint, RunCommand
from runs.providers.messages import content_of, request
from runs.statuses import RunStatus
from timeline.errors import LeaseLost
from timeline.log import Entry, hold

log = logging.getLogger(__name__)
#: Of a process that held the run alone, in one step: see runs.lifecycle.suspects.
MAX_DEATHS = 3
STORAGE_WAIT_S = 0.5


def drive_run(
    run_id: UUID,
    owner: str,
    keeper: Keeper,
    loop: LoopThread,
    stopping: Stopping,
    *,
    on_progress: Callable[[], None] = nothing,
) -> bool:
    """Claim a run and drive it for a slice; False where there was nothing to claim. `on_progress` is called once a
    step is committed."""
    began = clock()
    claimed = _claim(run_id, owner)
    if claimed is None:
        return False
    with keeper.keep(run_id, claimed.epoch, began) as lease:
        lease.after_death, lease.on_progress = claimed.died, on_progress
        try:
            while not _drive(claimed, lease, loop, stopping):
                _wait_for_storage(lease)
            return True
        except LeaseLost:
            log.info("dropped a run that was taken over", extra={"run_id": str(run_id)})
    # Out of the hands of the keeper, who would renew what was given up.
    _note_fenced(run_id, claimed.epoch, stopping)
    return True


def _note_fenced(run_id: UUID, epoch: int, stopping: Stopping) -> None:
    """Untold, its attempt counts as a death. Where it was storage that took the run away, this waits for storage."""
    while True:
        try:
            return transitions.note_fenced(run_id, epoch)
        except STORAGE as error:
            pass_others_on(error)
            connection.close()
        if stopping.asked.wait(STORAGE_WAIT_S):
            return None


def _claim(run_id: UUID, owner: str) -> Claimed | None:
    """The claim; one whose answer was cut off is looked up, or the run would lie idle for a whole lease."""
    try:
        return transitions.claim(run_id, owner)
    except STORAGE as error:
        pass_others_on(error)
        connection.close()
    try:
        return transitions.held_by(run_id, owner)
    except STORAGE as error:
        pass_others_on(error)
        # Should it be ours all the same, its lease runs out.
        connection.close()
        log.warning("storage failed in a claim: %s", type(error).__name__, extra={"run_id": str(run_id)})
        return None


def _drive(claimed: Claimed, lease: Lease, loop: LoopThread, stopping: Stopping) -> bool:
    """Load the run and drive it; False where storage failed, and the rows have to be read again."""
    try:
        run = AgentRun.objects.select_related("project").get(pk=lease.run_id)
        if run.lease_epoch != lease.epoch:
            raise LeaseLost(f"run {run.pk} was taken over before it was loaded")
        if claimed.deaths >= MAX_DEATHS and ending.pause_poisoned(run, lease, claimed.deaths):
            return True
        drive = _open(run, lease, loop, stopping)
    except (LookupError, ValueError, TypeError) as error:
        # Its provider, model or tools are gone since it was created: no worker could drive it.
        return _unopened(run, lease, error)
    except STORAGE as error:
        return _storage_failed(lease, error)
    try:
        ending.abandon_open_turn(lease)
        if lease.after_death and policy_acts.on_dead(drive):
            return True
        lease.after_death = False
        _loop(drive)
    except STORAGE as error:
        return _storage_failed(lease, error)
    return True


def _open(run: AgentRun, lease: Lease, loop: LoopThread, stopping: Stopping) -> Drive:
    """Load what the run needs, without a turn that has to be taken back."""
    rollback.half_done_turn(run, lease)
    try:
        return open_drive(run, lease, loop, stopping)
    except ValueError:
        if not rollback.unreadable_turn(run, lease):
            raise
    return open_drive(run, lease, loop, stopping)


def _unopened(run: AgentRun, lease: Lease, error: Exception) -> bool:
    try:
        ending.abandon_open_turn(lease)
        policy_acts.on_unopened(run, lease, error)
    except STORAGE as failed:
        return _storage_failed(lease, failed)
    return True


def _storage_failed(lease: Lease, error: Error) -> bool:
    pass_others_on(error)
    log.warning("storage failed in a step: %s", type(error).__name__, extra={"run_id": str(lease.run_id)})
    return False


def _wait_for_storage(lease: Lease) -> None:
    """Not a death: the lease is still ours, and the rows say how far the run is."""
    connection.close()
    time.sleep(STORAGE_WAIT_S)
    lease.check()


def _loop(drive: Drive) -> None:
    """One decision after the other; each act leaves the run in a state from which any worker can go on."""
    while _act_safely(drive):
        pass


def _act_safely(drive: Drive) -> bool:
    """Decide and act once; False when the run has left our hands."""
    try:
        if not _act(drive, _decide(drive)):
            return False
        drive.check()
    except LetGo:
        ending.hand_back(drive, "worker_ending")
        return False
    except Cooldown as wait:
        return not _left(drive, partial(ending.cool_down, drive, wait))
    except GaveUp as error:
        return not _left(drive, partial(policy_acts.on_error, drive, error.failure))
    return True


def _act(drive: Drive, action: Next) -> bool:
    """Do one thing; False when the run has left our hands."""
    match action:
        case Next.ASK_MODEL:
            model_turn.make(drive)
            if not drive.stepped:
                drive.stepped = True
                drive.lease.on_progress()
            if drive.open_calls:
                tool_turn.finish(drive, lambda: _closing(drive))
        case Next.FINISH_CALLS:
            tool_turn.finish(drive, lambda: _closing(drive))
        case Next.TAKE_MESSAGES:
            _checkpoint_if_missing(drive)
            _take_messages(drive, inbox.pending(drive.run.pk))
        case Next.WAIT_FOR_INPUT:
            return not _left(drive, partial(policy_acts.on_prompt, drive))
        case _:
            _checkpoint_if_missing(drive)
            leave = {Next.IDLE: policy_acts.on_idle, Next.PAUSE_MAX_STEPS: policy_acts.on_max_steps}.get(action)
            return not _left(drive, partial(leave, drive) if leave else partial(ending.leave, drive, action))
    return True


def _left(drive: Drive, leave: Callable[[], None]) -> bool:
    """Whether the run has left our hands: a command that came just now may have changed that, and a policy may only
    have said something to the agent."""
    try:
        leave()
    except (ending.DecideAgain, StopAsked):
        return False
    return drive.run.state is not RunStatus.RUNNING


def _decide(drive: Drive) -> Next:
    if drive.turn_started:
        return Next.ASK_MODEL  # decided with the last result, whose commit says so
    action = decisions.next_action(_view(drive, inbox.waiting(drive.run.pk), answered=_answered(drive)))
    if action is Next.ASK_MODEL:
        _checkpoint_if_missing(drive)
    return action


def _view(drive: Drive, pending: set[str], *, answered: bool, open_calls: bool | None = None) -> decisions.View:
    run = drive.run
    return decisions.View(
        pending=pending,
        open_calls=bool(drive.open_calls) if open_calls is None else open_calls,
        unknown_calls=drive.unknown_call is not None,
        answered=answered,
        step_count=run.step_count,
        step_limit=run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS),
        let_go=drive.let_go(),
        repeated=bool(drive.open_calls) and drive.streak(drive.open_calls[0]) >= repeats.STOP_AT,
        over_budget=bool(drive.spending.used_up()),
        asks=tool_turn.asked(drive) is not None,
        done=drive.ending_call() is not None,
        on_idle=drive.idles and drive.conversation.last_role == AgentRunMessage.Role.ASSISTANT,
    )


def _answered(drive: Drive) -> bool:
    """The model's last word asked for no tool, and no recording goes on after it; or the recording stops here."""
    if drive.open_calls:
        return False
    spoke_last = drive.conversation.last_role == AgentRunMessage.Role.ASSISTANT
    step = drive.run.step_count
    if step == drive.run.step_base:
        return spoke_last
    follow_up = drive.provider.follow_up(drive.config["model"], drive.node, step)
    return not follow_up.more if spoke_last else follow_up.end


def _closing(drive: Drive) -> tuple[Checkpoint, Entry | None]:
    """What the last result of a turn is committed with: its checkpoint, and the start of the next turn.

    The next turn's start may share the commit because nothing of the outside world lies between; that holds
    only where the model is asked next. Whether the inbox is empty, the commit itself looks.
    """
    chaos.point("checkpoint.before")
    position = drive.conversation.position + 1
    checkpoint = transcript.new_checkpoint(drive.run.pk, drive.run.step_count, position, drive.epoch)
    drive.checkpointed = drive.run.step_count
    follow_up = drive.provider.follow_up(drive.config["model"], drive.node, drive.run.step_count)
    view = _view(drive, set(), answered=follow_up.end, open_calls=False)
    asks = decisions.next_action(view) is Next.ASK_MODEL and not drive.says_done()
    return checkpoint, model_turn.turn_start(drive, 0) if asks else None


def _checkpoint_if_missing(drive: Drive) -> None:
    """The checkpoint of the last finished step, made again from the rows where a worker died before it."""
    step = drive.run.step_count
    if drive.checkpointed >= step or drive.open_calls or step == drive.run.step_base:
        return
    row = transcript.new_checkpoint(drive.run.pk, step, drive.conversation.position, drive.epoch)
    chaos.point("checkpoint.before")
    transcript.add_checkpoint(row, drive.epoch)
    drive.checkpointed = step
    chaos.point("checkpoint.committed")


def _take_messages(drive: Drive, commands: list[RunCommand]) -> None:
    """Put the user turns of the inbox into the conversation and mark them read, in one transaction."""
    taken = [c for c in commands if c.type in (inbox.Type.SEND, inbox.Type.REPLY)]
    turns = [request(UserPromptPart(content_of(c.payload["message"]), timestamp=timezone.now())) for c in taken]
    run = drive.run
    with transaction.atomic():
        # Before the rows: a worker that was taken over must hear that, not of a position that is taken.
        hold(run.pk, drive.epoch)
        made = transcript.add_requests(
            run, [(AgentRunMessage.Role.USER, turn) for turn in turns],
            step=run.step_count + 1, epoch=drive.epoch, position=drive.conversation.position,
        )  # fmt: skip
        mark_applied(taken)
        drive.append([transcript.added(row) for row, _ in made])
    for row, message in made:
        drive.conversation.add(row, message)
