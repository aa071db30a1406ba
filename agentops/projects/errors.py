"""What this floor refuses, each with a machine-readable `code` and the HTTP status that fits it."""

from __future__ import annotations

from typing import ClassVar


class AccessError(Exception):
    """The base: a door answers with `code`, `status` and the text, and needs to know nothing more."""

    code: ClassVar[str] = "access_error"
    status: ClassVar[int] = 403
    #: Said where the raiser says nothing more exact.
    text: ClassVar[str] = "this is not allowed"

    def __init__(self, text: str = "") -> None:
        super().__init__(text or self.text)


# --- Who are you? ---------------------------------------------------------------------------------------
class AuthRequired(AccessError):
    code = "auth_required"
    status = 401
    text = "sign in, or send an API key as a Bearer token"


class AuthInvalid(AccessError):
    """One text for every reason: a caller must not learn how far a guess came."""

    code = "auth_invalid"
    status = 401
    text = "the API key is not valid"


class AuthRevoked(AccessError):
    """Raised only to the holder of the whole key, who may know what became of it."""

    code = "auth_revoked"
    status = 401
    text = "the API key is revoked or expired: ask an admin of the project for another"


# --- May you? -------------------------------------------------------------------------------------------
class NotFound(AccessError):
    """Unknown, or another project's: same class, same text, so that nobody learns which."""

    code = "not_found"
    status = 404
    text = "not found"


class ProjectNotFound(NotFound):
    code = "project_not_found"
    text = "no such project"


class MemberNotFound(NotFound):
    code = "member_not_found"
    text = "this person is not a member of the project"


class KeyNotFound(NotFound):
    code = "key_not_found"
    text = "no such API key"


class Forbidden(AccessError):
    """The project may be seen, but not this done in it."""

    code = "forbidden"


class ScopeRequired(Forbidden):
    code = "scope_required"


class RoleRequired(Forbidden):
    code = "role_required"


# --- Does it fit what is there? -------------------------------------------------------------------------
class Conflict(AccessError):
    code = "conflict"
    status = 409


class SlugTaken(Conflict):
    code = "slug_taken"


class AlreadyMember(Conflict):
    code = "already_member"


class LastAdmin(Conflict):
    code = "last_admin"
    text = "the last admin of a project cannot be removed or demoted: make someone else an admin first"


class KeyNotActive(Conflict):
    code = "key_not_active"
    text = "the API key is revoked or expired: create a new one"


class AmbiguousKey(Conflict):
    code = "ambiguous_key"
    exit_code: ClassVar[int] = 4


# --- Is it well formed? ---------------------------------------------------------------------------------
class Invalid(AccessError):
    code = "invalid"
    status = 422


class InvalidSlug(Invalid):
    code = "invalid_slug"


class InvalidName(Invalid):
    code = "invalid_name"


class InvalidRetention(Invalid):
    code = "invalid_retention"


class InvalidRole(Invalid):
    code = "invalid_role"


class InvalidScopes(Invalid):
    code = "invalid_scopes"


class InvalidExpiry(Invalid):
    code = "invalid_expiry"


class InvalidQuery(Invalid):
    """Of a page that no link, and no form, of ours has."""

    code = "invalid_query"
    status = 400
