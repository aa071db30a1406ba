"""The one way to objects: who asks (Principal), what for (Action), and what of it they may have.

Every answer is read afresh from the database: a changed role, a demoted
superuser or a revoked key holds for the next question, also inside a stream that is already open.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import Model, QuerySet
from django.utils import timezone

from agentops.projects.errors import AuthRequired, Forbidden, ProjectNotFound, RoleRequired, ScopeRequired
from agentops.projects.models import ApiKey, Membership, Project, Role, Scope
from agentops.projects.names import SLUG_PATTERN, UUID_PATTERN

M = TypeVar("M", bound=Model)


class Action(enum.Enum):
    """What a caller wants of a project: the rows of the authorization matrix."""

    READ = "read"
    INGEST = "ingest"
    #: Create, send, reply, pause, resume, stop; in bulk by ids.
    OPERATE = "operate"
    #: Whether one may approve one's own run (four eyes) is asked where the run is known.
    APPROVE = "approve"
    EXPORT = "export"
    #: Kill a live agent, resume everything.
    KILL = "kill"
    #: Agents, policies, hooks, sinks, webhooks.
    CONFIGURE = "configure"
    #: See what a model said with the secrets in it; each time is audited.
    REVEAL = "reveal"
    #: Keys, members, retention.
    MANAGE = "manage"
    #: Create projects, Django admin, checks over all projects. The project asked for is of no matter.
    SUPER = "super"


class PrincipalKind(enum.StrEnum):
    USER = "user"
    KEY = "key"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. It says who someone is; what they may is asked of `may`, never read off these fields."""

    kind: PrincipalKind
    #: As the audit trail names them: "user:<name>", "key:<prefix>", "system", "anonymous".
    actor: str
    user_id: int | None = None
    key_id: UUID | None = None
    #: Only worth a look into the database: `may` believes a yes only when it reads it again.
    is_superuser: bool = False
    #: The only project that a key can enter.
    project_id: UUID | None = None
    scopes: frozenset[Scope] = frozenset()
    #: Where the request came from, for the audit trail.
    ip: str | None = None

    @property
    def is_authenticated(self) -> bool:
        """As Django asks of a user."""
        return self != ANONYMOUS

    @property
    def holder(self) -> str:
        """Whose rights these are: what a message that they have changed names."""
        return key_holder(self.key_id) if self.key_id is not None else user_holder(self.user_id)


def key_holder(key_id: UUID) -> str:
    return f"key:{key_id}"


def user_holder(user_id: int | str | None) -> str:
    return f"user:{user_id}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the matrix. Scopes are not hierarchical, so each row lists all that suffice."""

    roles: frozenset[Role]
    scopes: frozenset[Scope] = frozenset()
    superuser: bool = True


_EVERYONE = frozenset(Role)
_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
_ADMINS = frozenset({Role.ADMIN})
RULES = {
    Action.READ: Rule(_EVERYONE, frozenset({Scope.READ, Scope.WRITE})),
    # Keys only: what a runner reports must be told apart from what a person does.
    Action.INGEST: Rule(frozenset(), frozenset({Scope.INGEST}), superuser=False),
    Action.OPERATE: Rule(_OPERATORS, frozenset({Scope.WRITE})),
    Action.APPROVE: Rule(_OPERATORS, frozenset({Scope.WRITE})),
    Action.EXPORT: Rule(_EVERYONE, frozenset({Scope.READ, Scope.WRITE})),
    Action.KILL: Rule(_ADMINS),
    Action.CONFIGURE: Rule(_ADMINS),
    Action.REVEAL: Rule(_ADMINS, frozenset({Scope.SECRETS})),
    Action.MANAGE: Rule(_ADMINS),
    Action.SUPER: Rule(frozenset()),
}

#: The program itself: sweeps, the command line, imports by whoever has the machine.
SYSTEM = Principal(PrincipalKind.SYSTEM, "system")
ANONYMOUS = Principal(PrincipalKind.USER, "anonymous")


def principal_for_user(user: AbstractBaseUser | AnonymousUser, *, ip: str | None = None) -> Principal:
    if not user.is_authenticated:
        return ANONYMOUS
    return Principal(
        PrincipalKind.USER,
        f"user:{user.get_username()}",
        user_id=user.pk,
        is_superuser=bool(getattr(user, "is_superuser", False)),
        ip=ip,
    )


def principal_for_key(key: ApiKey, *, ip: str | None = None) -> Principal:
    return Principal(
        PrincipalKind.KEY,
        f"key:{key.prefix}",
        key_id=key.pk,
        project_id=key.project_id,
        scopes=frozenset(Scope(scope) for scope in key.scopes),
        ip=ip,
    )


def may(principal: Principal, action: Action, project_id: UUID | None) -> bool:
    """Whether the matrix lets them do it in this project, by what the database says now."""
    rule = RULES[action]
    if principal.kind is PrincipalKind.SYSTEM:
        return True
    if principal.kind is PrincipalKind.KEY:
        key = _active_keys(principal).first()
        return key is not None and key.project_id == project_id and not rule.scopes.isdisjoint(key.scopes)
    memberships = _memberships(principal, rule.roles)
    if project_id is not None and memberships.filter(project_id=project_id).exists():
        return True
    return rule.superuser and _is_superuser(principal)


def allowed(asked: Collection[tuple[Principal, UUID]], action: Action) -> set[tuple[Principal, UUID]]:
    """Those of the pairs for which `may` says yes, in three queries, however many there are."""
    rule = RULES[action]
    key_ids = {who.key_id for who, _ in asked if who.key_id is not None}
    user_ids = {who.user_id for who, _ in asked if who.user_id is not None}
    keys = {key.pk: key for key in ApiKey.objects.active(timezone.now()).filter(pk__in=key_ids)}
    people = get_user_model().objects.filter(pk__in=user_ids, is_active=True)
    bosses = dict(people.values_list("pk", "is_superuser"))
    roles = Membership.objects.filter(user_id__in=bosses, role__in=list(rule.roles))
    members = set(roles.values_list("user_id", "project_id"))

    def yes(who: Principal, project_id: UUID) -> bool:
        if who.kind is not PrincipalKind.USER:
            key = keys.get(who.key_id) if who.key_id else None
            scoped_key = key is not None and key.project_id == project_id and not rule.scopes.isdisjoint(key.scopes)
            return scoped_key or who.kind is PrincipalKind.SYSTEM
        is_boss = rule.superuser and who.is_superuser and bosses.get(who.user_id or 0, False)
        return is_boss or (who.user_id, project_id) in members

    return {pair for pair in asked if yes(*pair)}


def projects_for(principal: Principal) -> QuerySet[Project]:
    """The projects whose existence they may know: of a member any role, of a key its own."""
    projects = Project.objects.all()
    if principal.kind is PrincipalKind.SYSTEM or _is_superuser(principal):
        return projects
    if principal.kind is PrincipalKind.KEY:
        return projects.filter(pk__in=_active_keys(principal).values("project"))
    return projects.filter(pk__in=_memberships(principal, Role).values("project"))


def project_for(principal: Principal, slug_or_id: str | UUID, action: Action) -> Project:
    """The project, if they may do `action` in it.

    Raises AuthRequired to the anonymous, ProjectNotFound alike for a foreign and an unknown project (after the
    same queries), Forbidden (`role_required`, `scope_required`) where the project may be seen but not this done.
    """
    if principal == ANONYMOUS:
        raise AuthRequired
    # Looked up among the visible only, so a foreign project cannot be told from none.
    project = _named(projects_for(principal), slug_or_id).first()
    if project is None:
        raise ProjectNotFound
    if not may(principal, action, project.pk):
        raise _refusal(principal, action)
    return project


def project_of_key(key: ApiKey, slug_or_id: str, action: Action) -> Project | None:
    """What project_for gives the holder of `key`, who was authenticated for this very request, without asking again.

    None where it is not that simple: project_for then says why, after the same queries for all.
    """
    project = key.project
    named = slug_or_id in (project.slug, str(project.pk))
    return project if named and not RULES[action].scopes.isdisjoint(key.scopes) else None


def scoped(queryset: QuerySet[M], principal: Principal) -> QuerySet[M]:
    """Of any rows with a `project`, those they may READ. The filter joins nothing, so no row comes twice."""
    rule = RULES[Action.READ]
    if principal.kind is PrincipalKind.SYSTEM or _is_superuser(principal):
        return queryset
    if principal.kind is PrincipalKind.KEY:
        key = _active_keys(principal).first()
        if key is None or rule.scopes.isdisjoint(key.scopes):
            return queryset.none()
        return queryset.filter(project=key.project_id)
    return queryset.filter(project__in=_memberships(principal, rule.roles).values("project"))


def _active_keys(principal: Principal) -> QuerySet[ApiKey]:
    if principal.key_id is None:
        return ApiKey.objects.none()
    return ApiKey.objects.active(timezone.now()).filter(pk=principal.key_id)


def _memberships(principal: Principal, roles: Iterable[Role]) -> QuerySet[Membership]:
    """Their memberships; a person who was switched off has none."""
    if principal.user_id is None:
        return Membership.objects.none()
    return Membership.objects.filter(user_id=principal.user_id, user__is_active=True, role__in=list(roles))


def _is_superuser(principal: Principal) -> bool:
    if principal.user_id is None or not principal.is_superuser:
        return False
    people = get_user_model().objects
    return people.filter(pk=principal.user_id, is_active=True, is_superuser=True).exists()


def _named(projects: QuerySet[Project], slug_or_id: str | UUID) -> QuerySet[Project]:
    """By id or slug. What is neither never reaches the database: Postgres fails on NUL and lone surrogates."""
    # Other spellings of a UUID (braces, no dashes) are refused: one project, one address.
    if isinstance(slug_or_id, UUID) or re.match(UUID_PATTERN, slug_or_id):
        return projects.filter(pk=slug_or_id)
    if re.match(SLUG_PATTERN, slug_or_id):
        return projects.filter(slug=slug_or_id)
    return projects.none()


def _refusal(principal: Principal, action: Action) -> Forbidden:
    rule = RULES[action]
    if principal.kind is PrincipalKind.KEY:
        scopes = " or ".join(scope.value for scope in Scope if scope in rule.scopes)
        return ScopeRequired(f"this needs a key with the scope {scopes}" if scopes else "no API key may do this")
    roles = " or ".join(role.value for role in Role if role in rule.roles)
    if roles:
        return RoleRequired(f"this needs the role {roles}")
    return RoleRequired("only a superuser may do this" if rule.superuser else "only an API key may do this")
