"""Links an imported run to the run from which it was copied, as its fork or child, and sets the titles of runs.

The runs may be imported in any order. A file may name its origin. Otherwise the model calls that two runs report show
it: a run that has all messages of another run, and more, is the fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation.transcript import text_of
from runs.conversation.writes import TOKENS
from runs.external import contents, model_calls
from runs.external.child_runs import is_below
from runs.external.importers.base import ImportedRun
from runs.external.message_events import prompt_columns
from runs.external.model_calls import CallReports
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import AgentRun, AgentRunMessage, ExternalRun
from timeline import log
from timeline.events import EventType

#: Prefixes of the event IDs that importers give to messages. Two runs are compared by these IDs.
_MESSAGE_IDS = ("line:", "turn:")


@dataclass
class Reported:
    """A run, and the facts that an import reported about it."""

    run: AgentRun
    head: ImportedRun
    calls: CallReports
    #: The IDs of its new events, in order.
    added: Sequence[str] = ()
    #: Whether the import opened the run.
    is_new: bool = False
    #: The position of the last message that its file marks as copied.
    copied_until: int = 0
    _message_ids: list[str] = field(default_factory=list)

    @property
    def message_ids(self) -> list[str]:
        """Return the IDs of the new events about messages."""
        self._message_ids = self._message_ids or [name for name in self.added if name.startswith(_MESSAGE_IDS)]
        return self._message_ids


def settle(reported: Sequence[Reported]) -> None:
    """Link imported runs to their origins, and count each model call in the run that made it.

    Must be called in the transaction of the import. Raises `CallsChanged` if a concurrent transaction changed which run
    counts a call.
    """
    # For all runs first, because an event of one run can join calls of other runs.
    model_calls.join_same([one.calls for one in reported])
    _link_waiting([one.run for one in reported if one.is_new])
    #: Pairs of session IDs: a session, and the fork that counted its calls until now.
    taken: set[tuple[str, str]] = set()
    for one in reported:
        _link_named(one)
        if one.copied_until:
            _set_copied(one.run, one.copied_until)
        _settle_calls(one, taken)
    _refresh([one.run for one in reported])


def _refresh(runs: Sequence[AgentRun]) -> None:
    """Load the columns again that `settle` may have changed in other objects of the same runs."""
    columns = (
        *(*TOKENS, "cost_usd", "cost_source", "unpriced_calls"),
        *("forked_from_id", "parent_run_id", "title", "prompt"),
    )
    by_id = {run.pk: run for run in runs}
    for pk, *values in AgentRun.with_removed.filter(pk__in=list(by_id)).values_list("pk", *columns):
        for name, value in zip(columns, values, strict=True):
            setattr(by_id[pk], name, value)


def _settle_calls(one: Reported, taken: set[tuple[str, str]]) -> None:
    """Decide for each run that counts calls of `one` which of both is the fork, and move the calls to the other one.

    `taken`: see `settle`.
    """
    holders = model_calls.holders_of(one.run, [*one.calls.own, *one.calls.copied])
    elsewhere: dict[UUID, dict[UUID, int]] = {}
    for call, step in one.calls.own.items():
        holder = holders[call].counted_in
        if holder != one.run.pk:
            elsewhere.setdefault(holder, {})[call] = step
    origin: UUID | None = None
    for holder_id, steps in elsewhere.items():
        known = {call: step for call, step in steps.items() if holders[call].is_copy}
        sessions = (one.run.session_id, _session_of(holder_id))
        if len(known) == len(steps) or sessions in taken or _is_contained(one, holder_id):
            taken.add(sessions)  # applies to its sub-agents too
            model_calls.move(one.run, steps, holder_id)
            _make_holder_fork(holder_id, one.run, instead_of=[other for other in elsewhere if other != holder_id])
            continue
        if known:
            model_calls.move(one.run, known, holder_id)
        origin = holder_id
    if origin is None and not one.calls.own:
        # The file marks the calls as copied, but does not name their run.
        origin = next((holders[call].counted_in for call in reversed(one.calls.copied)), None)
        if one.head.forked_ref or one.head.parent_ref:
            return
    if origin is not None and _can_be_fork(one.run, origin):
        one.run.forked_from_id = origin
        one.run.save(update_fields=["forked_from"])
        log.announce_run(one.run.project_id, origin)
        _set_own_part(one.run, origin)


def _is_contained(one: Reported, holder_id: UUID) -> bool:
    """Return whether the run `holder_id` has all new messages of `one`, and more messages. Then it is the fork."""
    stored = _stored(holder_id, one.message_ids)
    has_same_lines = any(name.startswith("line:") for name in stored)
    # A copy may have other IDs for its lines, but not for its answers, whose IDs are the provider's.
    if any(name not in stored for name in one.message_ids if has_same_lines or name.startswith("turn:")):
        return False
    own_count, holder_count = (AgentRunMessage.objects.filter(run=pk).count() for pk in (one.run.pk, holder_id))
    return own_count < holder_count


def _session_of(run_id: UUID) -> str:
    return AgentRun.with_removed.values_list("session_id", flat=True).get(pk=run_id)


def _stored(run_id: UUID, event_ids: Sequence[str]) -> set[str]:
    """Return which of these events a run has."""
    return {name for some in model_calls.chunks(event_ids) for name in log.stored_event_ids(run_id, some)}


def _link_named(one: Reported) -> None:
    """Link a run to the origin that its file names, or note the name if the project does not have that run yet."""
    run, reference = one.run, one.head.forked_ref or one.head.parent_ref
    if not reference or run.parent_run_id is not None or run.forked_from_id is not None:
        return
    is_parent = not one.head.forked_ref
    origin = _imported(run, reference)
    if origin is None:
        ExternalRun.objects.filter(run=run.pk).update(origin_ref=reference, origin_is_parent=is_parent)
    else:
        _link(run, origin, is_parent=is_parent)


def _imported(run: AgentRun, reference: str) -> AgentRun | None:
    """Return the imported run of this project with this reference. A runner's run can have the same reference."""
    runs = AgentRun.objects.filter(project=run.project_id, source=AgentRun.Source.IMPORT)
    return runs.filter(external_id=reference).first()


def link_opened(run: AgentRun) -> None:
    """Link a run that was opened in a private database to the other runs of the project."""
    external = ExternalRun.objects.filter(run=run.pk).exclude(origin_ref="").first()
    if external is not None:
        origin = _imported(run, external.origin_ref)
        if origin is not None:
            _link(run, origin, is_parent=external.origin_is_parent)
    _link_waiting([run])


def _link_waiting(runs: Sequence[AgentRun]) -> None:
    """Link the runs whose files named any of these runs as their origin before it was imported."""
    by_ref = {str(run.external_id): run for run in runs if run.external_id}
    for names in model_calls.chunks(list(by_ref)):
        waiting = ExternalRun.objects.filter(origin_ref__in=names).exclude(origin_ref="")
        waiting = waiting.filter(run__project=by_ref[names[0]].project_id)
        for external in waiting.select_related("run").order_by("run"):
            _link(external.run, by_ref[external.origin_ref], is_parent=external.origin_is_parent)


def _link(run: AgentRun, origin: AgentRun, *, is_parent: bool) -> None:
    """Link a run to its origin, unless it has one or `origin` descends from it. Forget the name of the origin."""
    name = "parent_run" if is_parent else "forked_from"
    if getattr(run, f"{name}_id") is None and not is_below(origin.pk, run.pk):
        setattr(run, name, origin)
        run.save(update_fields=[name])
        log.announce_run(run.project_id, run.pk)
        log.announce_run(run.project_id, origin.pk)
    ExternalRun.objects.filter(run=run.pk).update(origin_ref="")


def _make_holder_fork(run_id: UUID, origin: AgentRun, *, instead_of: Sequence[UUID]) -> None:
    """Make the run that counted calls a fork of `origin`, which was imported later.

    `instead_of`: origins that `origin` replaces, because they are forks of it, too.
    """
    run = AgentRun.with_removed.select_for_update(no_key=True, of=("self",)).get(pk=run_id)
    has_other = run.forked_from_id is not None and run.forked_from_id not in instead_of
    if has_other or run.parent_run_id is not None or run.session_id == origin.session_id:
        return
    if not is_below(origin.pk, run.pk):
        run.forked_from = origin
        run.save(update_fields=["forked_from"])
        log.announce_run(run.project_id, run.pk)
        _set_own_part(run, origin.pk)


def _can_be_fork(run: AgentRun, origin_id: UUID) -> bool:
    if run.forked_from_id is not None or run.parent_run_id is not None or is_below(origin_id, run.pk):
        return False
    origin = AgentRun.objects.filter(pk=origin_id).only("session_id").first()
    return origin is not None and origin.session_id != run.session_id


def _set_own_part(run: AgentRun, origin_id: UUID) -> None:
    """Set where the own part of a fork begins: after the last message that its origin also has."""
    events = log.events_of(run.pk).exclude(event_id=None).order_by("seq").values_list("seq", "event_id")
    rows = [(seq, name) for seq, name in events if name and name.startswith(_MESSAGE_IDS)]
    stored = _stored(origin_id, [name for _, name in rows])
    own = 1 + max((index for index, (_, name) in enumerate(rows) if name in stored), default=-1)
    added = log.events_of(run.pk).filter(type=EventType.MESSAGE_ADDED)
    if own < len(rows):
        added = added.filter(seq__lt=rows[own][0])
    position = added.order_by("-seq").values_list("payload__position", flat=True).first()
    _set_copied(run, int(position or 0))


def _set_copied(run: AgentRun, position: int) -> None:
    """Set the position of the last copied message. The prompt and the title then come from the messages after it."""
    ExternalRun.objects.filter(run=run.pk).update(copied_until=position)
    own = AgentRunMessage.objects.filter(run=run.pk, role=AgentRunMessage.Role.USER, position__gt=position)
    for row in own.order_by("position")[:20]:
        if not contents.is_of_program(text_of(row.content)):
            columns = prompt_columns(row, title="" if run.title == first_line(run) else run.title)
            if columns != {"prompt": run.prompt, "title": run.title}:
                run.prompt, run.title = columns["prompt"], columns["title"]
                run.save(update_fields=["prompt", "title"])
            return


def first_line(run: AgentRun) -> str:
    """Return the title that a run gets from its prompt."""
    lines = run.prompt.strip().splitlines() if isinstance(run.prompt, str) else []
    return lines[0][:200] if lines else ""


def give_titles(titled: Sequence[tuple[AgentRun, str]]) -> None:
    """Set the titles that programs have given to these runs, except on runs that a person has renamed."""
    for some in model_calls.chunks(titled):
        titles = {run.pk: REDACTOR.clean_text(title)[0][:MAX_TITLE] for run, title in some if title}
        given = dict(ExternalRun.objects.filter(run__in=list(titles)).values_list("run", "given_title"))
        for run, _ in some:
            if run.pk in given and given[run.pk] != titles[run.pk]:
                _give_title(run, titles[run.pk], given[run.pk])


def _give_title(run: AgentRun, title: str, before: str) -> None:
    """Set a title from the program. `before`: the last title from the program. A person's title is kept."""
    if run.title in ("", before, first_line(run)):
        run.title = title
        run.save(update_fields=["title"])
        log.announce_run(run.project_id, run.pk)
    ExternalRun.objects.filter(run=run.pk).update(given_title=title)
