"""Authorization: which `Principal` (user, API key or the system) may perform which `Action` in which project.

Every check reads the database, so that a changed role, a demoted superuser or a revoked key takes effect with the next
check, also within an open stream. A request that enters a project uses the project's redaction rules from then on.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import Model, QuerySet

from agentops.accounts.errors import AuthRequired, ProjectArchived, ProjectNotFound, RoleRequired
from agentops.accounts.models import ApiKey, Door, Membership, Project, Role, Scope
from agentops.accounts.names import SLUG_PATTERN, UUID_PATTERN
from agentops.base import database_clock
from agentops.base.redaction import project_scope
from agentops.base.refusals import Forbidden

M = TypeVar("M", bound=Model)


class Action(enum.Enum):
    """A kind of operation in a project, with a rule in `RULES`."""

    READ = "read"
    INGEST = "ingest"
    #: Upload transcripts of other programs.
    IMPORT = "import"
    #: A key with the scope `ingest` alone sees only its own imports.
    VIEW_IMPORTS = "view imports"
    #: Create, pause, resume and stop runs, send and reply; also in bulk, by the IDs of the runs.
    OPERATE = "operate"
    #: Decide about tool calls. Whether users may approve calls of their own runs is checked elsewhere.
    APPROVE = "approve"
    EXPORT = "export"
    #: Stop the worker of an active run, and resume all runs that match a filter.
    KILL = "kill"
    #: Agents, policies, hooks, sinks, webhooks.
    CONFIGURE = "configure"
    #: Claim runs of remote agents and store their steps; define these agents.
    WORK = "work"
    #: View messages and tool calls with their secrets; each access is audited.
    REVEAL = "reveal"
    #: Keys, members, retention.
    MANAGE = "manage"
    #: Create projects, use the Django admin, check all projects. The project argument is ignored.
    SUPER = "super"


class PrincipalKind(enum.StrEnum):
    """The kind of a principal."""

    USER = "user"
    KEY = "key"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user, API key or the system. Permissions are checked with `may`, not with these fields."""

    kind: PrincipalKind
    #: Name in the audit log: "user:<name>", "key:<prefix>", "system", "anonymous".
    actor: str
    user_id: int | None = None
    key_id: UUID | None = None
    #: Whether the user was a superuser when this was created. It only saves queries: `may` reads the database again.
    is_superuser: bool = False
    #: The project of an API key.
    project_id: UUID | None = None
    scopes: frozenset[Scope] = frozenset()
    #: IP address of the request, for the audit log.
    ip: str | None = None
    #: The entry point of the request, for the audit log.
    door: Door = field(default=Door.SYSTEM, compare=False)

    @property
    def is_authenticated(self) -> bool:
        """Whether the principal is authenticated. Django REST framework reads this, as of Django's users."""
        return self != ANONYMOUS

    @property
    def holder(self) -> str:
        """The name of the user or key in `rights_changed` signals."""
        return holder_of_key(self.key_id) if self.key_id is not None else holder_of_user(self.user_id)


def holder_of_key(key_id: UUID) -> str:
    """Return the name of an API key in `rights_changed` signals."""
    return f"key:{key_id}"


def holder_of_user(user_id: int | str | None) -> str:
    """Return the name of a user in `rights_changed` signals."""
    return f"user:{user_id}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may perform an action: one of the roles or scopes is sufficient. No role or scope includes another one."""

    roles: frozenset[Role]
    scopes: frozenset[Scope] = frozenset()
    #: Whether superusers may do it in every project.
    superuser: bool = True


@dataclass(frozen=True, slots=True)
class EnteredProject:
    """A project that a principal may see, with their permissions. It is valid for one request."""

    project: Project
    #: The allowed actions of the principal in it.
    actions: frozenset[Action]
    #: The projects of the menu: all that the principal may see, without archived ones.
    visible: QuerySet[Project]


_EVERYONE = frozenset(Role)
_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
_ADMINS = frozenset({Role.ADMIN})
RULES = {
    Action.READ: Rule(_EVERYONE, frozenset({Scope.READ, Scope.WRITE})),
    # API keys only, so that events of runners can be distinguished from actions of users.
    Action.INGEST: Rule(frozenset(), frozenset({Scope.INGEST}), superuser=False),
    Action.WORK: Rule(frozenset(), frozenset({Scope.WORK}), superuser=False),
    Action.IMPORT: Rule(_OPERATORS, frozenset({Scope.INGEST})),
    Action.VIEW_IMPORTS: Rule(_EVERYONE, frozenset({Scope.READ, Scope.WRITE, Scope.INGEST})),
    Action.OPERATE: Rule(_OPERATORS, frozenset({Scope.WRITE})),
    Action.APPROVE: Rule(_OPERATORS, frozenset({Scope.WRITE})),
    Action.EXPORT: Rule(_EVERYONE, frozenset({Scope.READ, Scope.WRITE})),
    Action.KILL: Rule(_ADMINS),
    Action.CONFIGURE: Rule(_ADMINS),
    Action.REVEAL: Rule(_ADMINS, frozenset({Scope.SECRETS})),
    Action.MANAGE: Rule(_ADMINS),
    Action.SUPER: Rule(frozenset()),
}
_SUPERUSER_ACTIONS = frozenset(action for action, rule in RULES.items() if rule.superuser)
#: The actions that an archived project still allows: it is read-only, but can be managed, for example unarchived.
_WHILE_ARCHIVED = frozenset(
    {Action.READ, Action.VIEW_IMPORTS, Action.EXPORT, Action.REVEAL, Action.MANAGE, Action.SUPER}
)

#: The server itself, and the command line.
SYSTEM = Principal(PrincipalKind.SYSTEM, "system")
ANONYMOUS = Principal(PrincipalKind.USER, "anonymous")


def principal_for_user(
    user: AbstractBaseUser | AnonymousUser, *, ip: str | None = None, door: Door = Door.SYSTEM
) -> Principal:
    """Return the principal of a user; ANONYMOUS unless authenticated."""
    if not user.is_authenticated:
        return ANONYMOUS
    return Principal(
        PrincipalKind.USER,
        f"user:{user.get_username()}",
        user_id=user.pk,
        is_superuser=bool(getattr(user, "is_superuser", False)),
        ip=ip,
        door=door,
    )


def principal_for_key(key: ApiKey, *, ip: str | None = None) -> Principal:
    """Return the principal of an API key."""
    return Principal(
        PrincipalKind.KEY,
        f"key:{key.prefix}",
        key_id=key.pk,
        project_id=key.project_id,
        scopes=frozenset(Scope(scope) for scope in key.scopes),
        ip=ip,
        door=Door.API,
    )


def actions_of(principal: Principal, project_id: UUID | None) -> frozenset[Action]:
    """Return the actions that `principal` may perform in the project; without a project, the actions on the site."""
    actions = _actions(principal, project_id, is_superuser=_is_superuser(principal))
    if principal.kind is PrincipalKind.SYSTEM or project_id is None or actions <= _WHILE_ARCHIVED:
        return actions
    return actions & _WHILE_ARCHIVED if _archived({project_id}) else actions


def may(principal: Principal, action: Action, project_id: UUID | None) -> bool:
    """Return whether `principal` may perform `action` in the project, according to the database."""
    return action in actions_of(principal, project_id)


def allowed_pairs(pairs: Collection[tuple[Principal, UUID]], action: Action) -> set[tuple[Principal, UUID]]:
    """Return the pairs of principal and project for which `may` returns True. At most four queries."""
    rule = RULES[action]
    archived = set() if action in _WHILE_ARCHIVED else _archived({project_id for _, project_id in pairs})
    key_ids = {principal.key_id for principal, _ in pairs if principal.key_id is not None}
    user_ids = {principal.user_id for principal, _ in pairs if principal.user_id is not None}
    keys = {key.pk: key for key in ApiKey.objects.active(database_clock.now()).filter(pk__in=key_ids)}
    people = get_user_model().objects.filter(pk__in=user_ids, is_active=True)
    superuser_by_id = dict(people.values_list("pk", "is_superuser"))
    roles = Membership.objects.filter(user_id__in=superuser_by_id, role__in=list(rule.roles))
    members = set(roles.values_list("user_id", "project_id"))

    def is_allowed(principal: Principal, project_id: UUID) -> bool:
        if project_id in archived and principal.kind is not PrincipalKind.SYSTEM:
            return False
        if principal.kind is not PrincipalKind.USER:
            key = keys.get(principal.key_id) if principal.key_id else None
            scoped_key = key is not None and key.project_id == project_id and not rule.scopes.isdisjoint(key.scopes)
            return scoped_key or principal.kind is PrincipalKind.SYSTEM
        is_superuser = rule.superuser and principal.is_superuser and superuser_by_id.get(principal.user_id or 0, False)
        return is_superuser or (principal.user_id, project_id) in members

    return {pair for pair in pairs if is_allowed(*pair)}


def projects_for(principal: Principal) -> QuerySet[Project]:
    """Return the visible projects: for a user, the projects with any role; for an API key, its own project."""
    return _visible_projects(principal, is_superuser=_is_superuser(principal))


def enter(principal: Principal, slug_or_id: str | UUID, action: Action) -> EnteredProject:
    """Return the project and the permissions of `principal` in it, if they include `action`. Two queries.

    Raises `AuthRequired` without authentication, `ProjectNotFound` for unknown and for invisible projects (after the
    same queries), and `Forbidden` (`role_required`, `scope_required`, `project_archived`) if the project is visible.
    """
    if principal == ANONYMOUS:
        raise AuthRequired
    is_superuser = _is_superuser(principal)
    # Search visible projects only, so that invisible and unknown projects cannot be distinguished.
    visible = _visible_projects(principal, is_superuser=is_superuser)
    project = _with_name(visible, slug_or_id).first()
    if project is None:
        raise ProjectNotFound
    actions = _actions(principal, project.pk, is_superuser=is_superuser)
    if action not in actions:
        raise _refusal(principal, action)
    if project.archived_at is not None and principal.kind is not PrincipalKind.SYSTEM:
        actions &= _WHILE_ARCHIVED
        if action not in actions:
            raise ProjectArchived
    project_scope.add(project.pk)
    return EnteredProject(project, actions, visible.filter(archived_at=None))


def project_for(principal: Principal, slug_or_id: str | UUID, action: Action) -> Project:
    """Return the project if `principal` may perform `action` in it. Raises what `enter` raises."""
    return enter(principal, slug_or_id, action).project


def project_of_key(key: ApiKey, slug_or_id: str, action: Action) -> Project | None:
    """Return the project of a key that was authenticated for this request, without a query.

    None if the project differs or is archived, or if the key lacks the scope: `project_for` then raises the error.
    """
    project = key.project
    matches = slug_or_id in (project.slug, str(project.pk))
    is_closed = project.archived_at is not None and action not in _WHILE_ARCHIVED
    if not matches or is_closed or RULES[action].scopes.isdisjoint(key.scopes):
        return None
    project_scope.add(project.pk)
    return project


def visible_rows(queryset: QuerySet[M], principal: Principal) -> QuerySet[M]:
    """Filter rows of a model with a `project` by whether `principal` may READ the project. Adds no joins."""
    rule = RULES[Action.READ]
    if principal.kind is PrincipalKind.SYSTEM or _is_superuser(principal):
        # A project that is being deleted is hidden from everybody.
        return queryset.exclude(project__in=Project._base_manager.exclude(removed_at=None).values("pk"))
    if principal.kind is PrincipalKind.KEY:
        key = _active_keys(principal).first()
        if key is None or rule.scopes.isdisjoint(key.scopes):
            return queryset.none()
        return queryset.filter(project=key.project_id)
    return queryset.filter(project__in=_memberships(principal).filter(role__in=list(rule.roles)).values("project"))


def _actions(principal: Principal, project_id: UUID | None, *, is_superuser: bool) -> frozenset[Action]:
    """Return the actions that `principal` may perform in the project if it is not archived."""
    if principal.kind is PrincipalKind.SYSTEM:
        return frozenset(Action)
    if is_superuser:
        return _SUPERUSER_ACTIONS
    if principal.kind is PrincipalKind.KEY:
        key = _active_keys(principal).filter(project=project_id).first()
        scopes = key.scopes if key else []
        return frozenset(action for action, rule in RULES.items() if not rule.scopes.isdisjoint(scopes))
    if project_id is None:
        return frozenset()
    role = next(iter(_memberships(principal).filter(project=project_id).values_list("role", flat=True)), None)
    return frozenset(action for action, rule in RULES.items() if role in rule.roles)


def _archived(project_ids: Collection[UUID]) -> set[UUID]:
    """Return the IDs of the projects that are archived. One query."""
    rows = Project.objects.filter(pk__in=project_ids, archived_at__isnull=False)
    return set(rows.values_list("pk", flat=True))


def _visible_projects(principal: Principal, *, is_superuser: bool) -> QuerySet[Project]:
    if is_superuser or principal.kind is PrincipalKind.SYSTEM:
        return Project.objects.all()
    if principal.kind is PrincipalKind.KEY:
        return Project.objects.filter(pk__in=_active_keys(principal).values("project"))
    return Project.objects.filter(pk__in=_memberships(principal).values("project"))


def _active_keys(principal: Principal) -> QuerySet[ApiKey]:
    if principal.key_id is None:
        return ApiKey.objects.none()
    return ApiKey.objects.active(database_clock.now()).filter(pk=principal.key_id)


def _memberships(principal: Principal) -> QuerySet[Membership]:
    """Return the memberships of an active user; none for other principals."""
    if principal.user_id is None:
        return Membership.objects.none()
    return Membership.objects.filter(user_id=principal.user_id, user__is_active=True)


def _is_superuser(principal: Principal) -> bool:
    if principal.user_id is None or not principal.is_superuser:
        return False
    people = get_user_model().objects
    return people.filter(pk=principal.user_id, is_active=True, is_superuser=True).exists()


def _with_name(projects: QuerySet[Project], slug_or_id: str | UUID) -> QuerySet[Project]:
    """Filter by ID or slug. Other texts are not sent to the database: PostgreSQL raises errors for some of them."""
    # Other forms of a UUID, in braces or without dashes, match nothing, so that each project has one URL by its ID.
    if isinstance(slug_or_id, UUID) or re.match(UUID_PATTERN, slug_or_id):
        return projects.filter(pk=slug_or_id)
    if re.match(SLUG_PATTERN, slug_or_id):
        return projects.filter(slug=slug_or_id)
    return projects.none()


def _refusal(principal: Principal, action: Action) -> Forbidden:
    """Return a refusal that names the roles or scopes that would be sufficient."""
    rule = RULES[action]
    if principal.kind is PrincipalKind.KEY:
        scopes = " or ".join(scope.value for scope in Scope if scope in rule.scopes)
        return Forbidden(
            f"this requires an API key with the scope {scopes}" if scopes else "API keys may not do this",
            code="scope_required",
        )
    roles = " or ".join(role.value for role in Role if role in rule.roles)
    if roles:
        return RoleRequired(f"this requires the role {roles}")
    return RoleRequired("only a superuser may do this" if rule.superuser else "only an API key may do this")
