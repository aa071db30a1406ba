"""Commits of several runs in one transaction of PostgreSQL, when threads of a process want to commit at the same time.

Whoever comes first commits at once and alone. Those that come meanwhile wait, and one of them then commits for all. No
thread goes on before its rows are committed, and none waits for others that might come. So a process with one run pays
nothing for it, and one with many saves commits, round trips, and threads that compete for the interpreter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import Error, OperationalError, connection

from agentops.base.database.fast_rows import prepared_cursor

#: Commits in one transaction, at most.
MAX_GROUP = 32
#: Seconds to wait for a commit of others, such as one that waits for a row that somebody has locked.
PATIENCE_S = 0.1
_ALONE = "SELECT last_seq, followed FROM runs_commit(%s, %s, %s, %s::jsonb, %s::jsonb, %s::jsonb)"
_GROUP = """
SELECT last_seq, followed FROM runs_commit_group(
  %s::uuid[], %s::int[], %s::text[], %b::text[]::jsonb[], %b::text[]::jsonb[], %b::text[]::jsonb[])
"""


class CommitArguments(NamedTuple):
    """What the SQL function runs_commit is called with; the last three are JSON."""

    run_id: UUID
    epoch: int | None
    source: str
    rows: str
    events: str
    next_turn_start: str | None


class Committed(NamedTuple):
    """The last sequence number of the log, and whether the start of the next turn was appended."""

    last_seq: int
    followed: bool


class _Member:
    """The commit of one thread, and its result or error."""

    def __init__(self, arguments: CommitArguments) -> None:
        self.arguments = arguments
        #: Set once its group was committed or has failed, or once it has to lead the next group.
        self.woken = threading.Event()
        self.leads = False
        #: Neither is set if the member has to commit alone.
        self.result: Committed | None = None
        self.lost: BaseException | None = None


class GroupCommit:
    """The commits of a process. At any time, at most one of its threads leads a group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.has_leader = False
        #: Those that came while somebody led. Changed under the lock only.
        self.waiting: deque[_Member] = deque()

    def commit(self, arguments: CommitArguments) -> Committed:
        """Commit, with those that others have ready. Raises what `commit_alone` raises.

        `OperationalError` also means that the connection was lost while another thread committed for this one.
        """
        member = _Member(arguments)
        try:
            self._enter(member)
            if not member.leads:
                self._wait(member)
            if member.leads:
                self._lead(member)
        finally:
            # Also if the thread was interrupted, for example by Ctrl-C: nobody would ever lead the others.
            self._leave(member)
        if member.lost is not None:
            raise OperationalError("the connection was lost in a commit of several runs") from member.lost
        return member.result or commit_alone(arguments)

    def _enter(self, member: _Member) -> None:
        """Lead if nobody does, or wait in the line."""
        with self._lock:
            if self.has_leader:
                self.waiting.append(member)
            else:
                self.has_leader = member.leads = True

    def _wait(self, member: _Member) -> None:
        """Wait until the member leads, has its result, or has waited for too long and commits alone."""
        if member.woken.wait(PATIENCE_S):
            return
        with self._lock:
            if member in self.waiting:
                self.waiting.remove(member)
                return
        # Another thread is committing for it, or has just made it the leader.
        member.woken.wait()

    def _lead(self, leader: _Member) -> None:
        """Commit for the leader and for those that wait."""
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
        """Leave the line. If the member has led, let the first of those that have come meanwhile lead."""
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
    """Commit by a statement of its own, in the caller's transaction if there is one."""
    # Outside of a transaction the statement commits by itself: one round trip.
    with prepared_cursor() as cursor:
        cursor.execute(_ALONE, arguments)
        return Committed(*cursor.fetchone())


def _commit_group(members: Sequence[_Member]) -> None:
    """Give each member its result, or `lost` if nobody knows whether the transaction was committed.

    Neither if it was rolled back: one of them was refused, or has to wait for a row that somebody has locked.
    """
    columns = [list(column) for column in zip(*(member.arguments for member in members), strict=True)]
    try:
        with prepared_cursor() as cursor:
            cursor.execute(_GROUP, columns)
            for member, result in zip(members, cursor.fetchall(), strict=True):
                member.result = Committed(*result)
    except BaseException as error:
        # First of all: a member without either would commit again, although its rows may be stored.
        for member in members:
            member.result, member.lost = None, error
        if not isinstance(error, Error) or not connection.is_usable():
            raise
        for member in members:
            member.lost = None


GROUP = GroupCommit()
