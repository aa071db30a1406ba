"""The redaction rules of all projects in memory, loaded again within seconds of a change by any process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from uuid import UUID

from django.db import Error, connection

from agentops.accounts import sealing
from agentops.accounts.models import Project, RedactionRule
from agentops.base.redaction.redact import BUILT_IN, Redactor
from agentops.base.redaction.registered_secrets import TokenFormat

log = logging.getLogger(__name__)
#: Seconds between checks for changed rules. A check is a query of the projects that have rules.
REFRESH_S = 2.0
#: Maximum number of cached redactors, each for a set of projects.
_MAX_REDACTORS = 256


@dataclass(frozen=True)
class RuleSet:
    """The rules of a project."""

    #: Secret → kind.
    secrets: Mapping[str, str] = field(default_factory=dict)
    formats: tuple[TokenFormat, ...] = ()
    #: Built-in kinds that are not masked.
    exceptions: frozenset[str] = frozenset()
    #: Whether texts are masked before they are stored and sent to a model.
    masks_model_input: bool = True

    def redactor(self) -> Redactor:
        """Return a redactor with these rules."""
        return Redactor(
            self.secrets, tokens=self.formats, off=self.exceptions, masks_model_input=self.masks_model_input
        )

    def __or__(self, other: RuleSet) -> RuleSet:
        """Return rules that mask for both projects. A setting that reduces masking applies only if both have it."""
        formats = tuple(dict.fromkeys((*self.formats, *other.formats)))
        masks_model_input = self.masks_model_input or other.masks_model_input
        secrets, exceptions = {**self.secrets, **other.secrets}, self.exceptions & other.exceptions
        return RuleSet(secrets, formats, exceptions, masks_model_input)


class _Snapshot:
    """The rules of all projects at one time, by project ID. Projects without rules are omitted."""

    def __init__(self, versions: Mapping[UUID, int], rules: Mapping[UUID, RuleSet]) -> None:
        self.versions = versions
        self.rules = rules
        self._redactors: dict[frozenset[UUID] | None, Redactor] = {}

    def redactor(self, project_ids: frozenset[UUID] | None) -> Redactor:
        """Return a redactor with the rules of these projects, or of all."""
        if not self.rules or (project_ids is not None and self.rules.keys().isdisjoint(project_ids)):
            return BUILT_IN
        redactor = self._redactors.get(project_ids)
        if redactor is None:
            # RuleSet() represents the projects without rules, which have no exceptions.
            sets = [RuleSet(), *self.rules.values()] if project_ids is None else map(self._rules_of, project_ids)
            redactor = reduce(or_, sets).redactor()
            if len(self._redactors) >= _MAX_REDACTORS:
                self._redactors.clear()
            self._redactors[project_ids] = redactor
        return redactor

    def _rules_of(self, project_id: UUID) -> RuleSet:
        return self.rules.get(project_id, RuleSet())


class RuleCache:
    """The rules of all projects, shared by all threads of the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._snapshot = _Snapshot({}, {})
        self._fresh_until = 0.0
        #: Whether the rules were loaded from the database at least once.
        self._is_loaded = False
        self._lock = threading.Lock()

    def redactor_of(self, project_ids: frozenset[UUID] | None, may_load: bool = True) -> Redactor:
        """Return the redactor of these projects; None: of all. `may_load`: whether changed rules may be loaded now."""
        return (self.current() if may_load else self._snapshot).redactor(project_ids)

    @property
    def has_rules(self) -> bool:
        """Whether any project has rules, or has switched off the masking of model input."""
        return bool(self.current().rules)

    def current(self) -> _Snapshot:
        """Return the rules. If this thread can query the database, they are at most REFRESH_S seconds old.

        While a thread checks for changes, the others use the rules loaded so far. Only before the first load they wait,
        and load the rules themselves if that failed, because texts that are masked without rules could be stored.
        """
        is_due = not self._is_loaded or self._clock() >= self._fresh_until
        if is_due and _can_query() and self._lock.acquire(blocking=not self._is_loaded):
            try:
                if self._clock() >= self._fresh_until or not self._is_loaded:
                    self._refresh()
            finally:
                self._lock.release()
        return self._snapshot

    def expire(self) -> None:
        """Make the next use check for changed rules."""
        self._fresh_until = 0.0

    def assume_none(self) -> None:
        """Drop all rules, and load none until `expire` is called. For a new, empty database."""
        self._snapshot, self._fresh_until, self._is_loaded = _Snapshot({}, {}), float("inf"), True

    def _refresh(self) -> None:
        """Load the rules that have changed. A database error is only logged."""
        # Set before the queries, so that a change during them is detected by the next check.
        self._fresh_until = self._clock() + REFRESH_S
        try:
            columns = ("pk", "redaction_version", "masks_model_input")
            # Projects that are being deleted are included, because their rules mask the remaining rows.
            projects = list(Project._base_manager.filter(redaction_version__gt=0).values_list(*columns))
            versions = {pk: version for pk, version, _ in projects}
            if versions == self._snapshot.versions:
                self._is_loaded = True
                return
            changed = [pk for pk, version in versions.items() if version != self._snapshot.versions.get(pk)]
            kept = {pk: rules for pk, rules in self._snapshot.rules.items() if pk in versions and pk not in changed}
            self._snapshot = _Snapshot(
                versions, {**kept, **load(changed, {pk for pk, _, masks in projects if not masks})}
            )
            self._is_loaded = True
        except Error as error:
            # A caller that stores a text fails by itself, and a text that is only displayed is masked by the rules that
            # were loaded so far.
            log.warning("the redaction rules could not be loaded: %s", type(error).__name__)


def load(project_ids: list[UUID], unmasked: Collection[UUID]) -> dict[UUID, RuleSet]:
    """Return the rules of the projects; without projects that have none.

    `unmasked`: projects that do not mask model input, which counts as a rule.
    """
    rows: dict[UUID, list[RedactionRule]] = {}
    for rule in RedactionRule.objects.filter(project__in=project_ids).order_by("pk"):
        rows.setdefault(rule.project_id, []).append(rule)
    rule_sets = {project_id: rule_set_of(rules) for project_id, rules in rows.items()}
    changed = {pk: rule_sets.get(pk, RuleSet()) for pk in project_ids if pk in unmasked}
    return rule_sets | {pk: replace(rules, masks_model_input=False) for pk, rules in changed.items()}


def rule_set_of(rules: list[RedactionRule]) -> RuleSet:
    """Convert stored rules for the redactor. A secret that cannot be decrypted is left out, and an error is logged."""
    secrets: dict[str, str] = {}
    formats, exceptions = [], []
    for rule in rules:
        if rule.kind == RedactionRule.Kind.SECRET:
            try:
                secrets[secret_of(rule)] = rule.name
            except sealing.Unreadable as error:
                log.error("redaction rule %s of project %s has no effect: %s", rule.name, rule.project_id, error)
        elif rule.kind == RedactionRule.Kind.FORMAT:
            formats.append(TokenFormat(rule.name, rule.prefix, rule.alphabet, rule.least or 0, rule.most or 0))
        else:
            exceptions.append(rule.name)
    return RuleSet(secrets, tuple(formats), frozenset(exceptions))


def secret_of(rule: RedactionRule) -> str:
    """Return the secret of a rule. Raises `sealing.Unreadable`."""
    return sealing.unseal(bytes(rule.sealed or b""), rule.key_id, owner_of(rule.project_id, rule.name))


def owner_of(project_id: UUID, name: str) -> str:
    """Return the owner of an encrypted secret, by which it cannot be decrypted as the secret of another rule."""
    return f"{project_id}:{name}"


def _can_query() -> bool:
    """Return whether this thread may query the database: its connection is open, and not in a failed transaction.

    A thread without a connection, such as a tool's thread, would never close one that is opened here. A thread with an
    event loop must not wait for the database.
    """
    if connection.connection is None or (connection.in_atomic_block and connection.needs_rollback):
        return False
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return False
    return True


CACHE = RuleCache()
