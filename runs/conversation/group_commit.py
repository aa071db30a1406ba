"""Group commit: threads of a process that commit at the same time share one PostgreSQL transaction.

The first thread commits immediately. Threads that arrive during that commit wait; one of them then commits for all. No
thread continues before its rows are committed, and no thread waits for others to arrive. A process with one run has no
overhead. A process with many runs saves commits, round trips and contention for the interpreter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import Error, OperationalError, connection

from agentops.base.database.statements import prepared_cursor

#: Commits in one transaction, at most.
MAX_GROUP = 32
#: Seconds after which a thread commits alone, because the leader's commit may wait for a row lock.
PATIENCE_S = 0.1
_ALONE = "SELECT last_seq, followed FROM runs_commit(%s, %s, %s, %s::jsonb, %s::jsonb, %s::jsonb)"
_GROUP = """
SELECT last_seq, followed FROM runs_commit_group(
  %s::uuid[], %s::int[], %s::text[], %b::text[]::jsonb[], %b::text[]::jsonb[], %b::text[]::jsonb[])
"""


class CommitArguments(NamedTuple):
    """The arguments of the SQL function runs_commit. The last three are JSON."""

    run_id: UUID
    epoch: int | None
    source: str
    rows: str
    events: str
    next_turn_start: str | None


class Committed(NamedTuple):
    """The last sequence number of the log (None: no event was appended), and whether the next turn was started."""

    last_seq: int | None
    next_turn_started: bool


class _Member:
    """The commit of one thread, and its result or error."""

    def __init__(self, arguments: CommitArguments) -> None:
        self.arguments = arguments
        #: Set when the group was committed or has failed, or when this member must lead the next group.
        self.woken = threading.Event()
        self.leads = False
        #: Set by the leader if the group was committed.
        self.result: Committed | None = None
        #: Set by the leader if it is unknown whether the group was committed: the error. If neither this nor `result`
        #: is set, the member commits alone.
        self.unknown_outcome: BaseException | None = None


class GroupCommit:
    """The commits of a process. At most one thread leads a group at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.has_leader = False
        #: Members that arrived during another member's commit. Changed only under the lock.
        self.waiting: deque[_Member] = deque()

    def commit(self, arguments: CommitArguments) -> Committed:
        """Commit, together with the commits of waiting threads if there are any. Raises what `commit_alone` raises.

        Also raises `OperationalError` if the connection was lost while another thread committed for this one.
        """
        member = _Member(arguments)
        try:
            self._enter(member)
            if not member.leads:
                self._wait(member)
            if member.leads:
                self._lead(member)
        finally:
            # Also after an interrupt such as Ctrl-C: otherwise the waiting members would never get a leader.
            self._leave(member)
        if (error := member.unknown_outcome) is not None:
            raise OperationalError("the connection was lost in a commit of several runs") from error
        return member.result or commit_alone(arguments)

    def _enter(self, member: _Member) -> None:
        """Become the leader if the group has no leader, or join the queue."""
        with self._lock:
            if self.has_leader:
                self.waiting.append(member)
            else:
                self.has_leader = member.leads = True

    def _wait(self, member: _Member) -> None:
        """Wait until the member leads or has its result. After `PATIENCE_S` it leaves the queue, to commit alone."""
        if member.woken.wait(PATIENCE_S):
            return
        with self._lock:
            if member in self.waiting:
                self.waiting.remove(member)
                return
        # Another thread is committing for this member, or has just made it the leader.
        member.woken.wait()

    def _lead(self, leader: _Member) -> None:
        """Commit for the leader and the waiting members."""
        others: list[_Member] = []
        try:
            with self._lock:
                while self.waiting and len(others) < MAX_GROUP - 1:
                    others.append(self.waiting.popleft())
            if others:
                _commit_group([leader, *others])
            else:
                leader.result = commit_alone(leader.arguments)
        finally:
            for other in others:
                other.woken.set()

    def _leave(self, member: _Member) -> None:
        """Leave the queue. If the member was the leader, make the first waiting member the leader."""
        with self._lock:
            if member in self.waiting:
                self.waiting.remove(member)
            if not member.leads:
                return
            successor = self.waiting.popleft() if self.waiting else None
            self.has_leader = successor is not None
            if successor is not None:
                successor.leads = True
                successor.woken.set()


def commit_alone(arguments: CommitArguments) -> Committed:
    """Commit with a separate statement, in the caller's transaction if there is one."""
    # Outside of a transaction the statement commits by itself, in one round trip.
    with prepared_cursor() as cursor:
        cursor.execute(_ALONE, arguments)
        return Committed(*cursor.fetchone())


def commit_together(arguments: Sequence[CommitArguments]) -> list[Committed]:
    """Commit for several runs with one statement, in the caller's transaction."""
    with prepared_cursor() as cursor:
        cursor.execute(_GROUP, _columns(arguments))
        return [Committed(*row) for row in cursor.fetchall()]


def _columns(arguments: Sequence[CommitArguments]) -> list[list[object]]:
    return [list(column) for column in zip(*arguments, strict=True)]


def _commit_group(members: Sequence[_Member]) -> None:
    """Commit for all members: give each its result, or `unknown_outcome` if the transaction may have been committed.

    Sets neither after a rollback, because one of the commits was refused, or would have waited for a locked row.
    """
    columns = _columns([member.arguments for member in members])
    try:
        with prepared_cursor() as cursor:
            cursor.execute(_GROUP, columns)
            for member, result in zip(members, cursor.fetchall(), strict=True):
                member.result = Committed(*result)
    except BaseException as error:
        # Set before the check below, which may fail too: a member with neither field set commits again, although its
        # rows may be stored.
        for member in members:
            member.result, member.unknown_outcome = None, error
        if not isinstance(error, Error) or not connection.is_usable():
            raise
        for member in members:
            member.unknown_outcome = None


GROUP = GroupCommit()
