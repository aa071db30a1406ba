"""Errors of the projects app, each with a machine-readable `code` and an HTTP status."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID


class AccessError(Exception):
    """The base class. Callers respond with `code`, `status` and the message."""

    code: ClassVar[str] = "access_error"
    status: ClassVar[int] = 403
    #: Default message.
    text: ClassVar[str] = "this action is not allowed"

    def __init__(self, text: str = "") -> None:
        super().__init__(text or self.text)


# --- Authentication -------------------------------------------------------------------------------------
class AuthRequired(AccessError):
    """The request has no credentials."""

    code = "auth_required"
    status = 401
    text = "log in, or send an API key as a Bearer token"


class AuthInvalid(AccessError):
    """The API key is invalid. The message is the same for all reasons, so that guesses learn nothing."""

    code = "auth_invalid"
    status = 401
    text = "the API key is not valid"


class AuthRevoked(AccessError):
    """The API key is revoked or expired. Raised only for a complete, valid key."""

    code = "auth_revoked"
    status = 401
    text = "the API key is revoked or expired: ask a project admin for a new one"

    def __init__(self, text: str = "", *, project_id: UUID | None = None, prefix: str = "") -> None:
        super().__init__(text)
        #: The project of the key, for counting refusals.
        self.project_id = project_id
        self.prefix = prefix


# --- Permissions ----------------------------------------------------------------------------------------
class NotFound(AccessError):
    """The object does not exist or is not visible; the error is the same, so that callers cannot distinguish them."""

    code = "not_found"
    status = 404
    text = "not found"


class ProjectNotFound(NotFound):
    """The project does not exist or is not visible."""

    code = "project_not_found"
    text = "project not found"


class MemberNotFound(NotFound):
    """The user is not a member of the project."""

    code = "member_not_found"
    text = "this user is not a member of the project"


class KeyNotFound(NotFound):
    """The API key does not exist."""

    code = "key_not_found"
    text = "API key not found"


class InvitationNotFound(NotFound):
    """The invitation does not exist, has expired, or was accepted or withdrawn; the error is the same."""

    code = "invitation_not_found"
    text = "this invitation is not valid: it has expired, or it was used or withdrawn"


class AddressLinkInvalid(NotFound):
    """The link that verifies an e-mail address is forged, was used or replaced, or is of another account or address."""

    code = "address_link_invalid"
    text = "this link is not valid: it was used, or replaced by a newer one, or the address of the account changed"


class AddressLinkExpired(AddressLinkInvalid):
    """The link that verifies an e-mail address is too old."""

    code = "address_link_expired"
    text = "this link has expired: send a new one from your account page"


class RuleNotFound(NotFound):
    """The project has no such redaction rule."""

    code = "rule_not_found"
    text = "redaction rule not found"


class Forbidden(AccessError):
    """The project is visible, but the action is not allowed."""

    code = "forbidden"


class ScopeRequired(Forbidden):
    """The API key lacks a scope."""

    code = "scope_required"


class RoleRequired(Forbidden):
    """The user lacks a role."""

    code = "role_required"


class ProjectArchived(Forbidden):
    """The project is archived, so it cannot be changed."""

    code = "project_archived"
    text = "the project is archived and read-only: an admin can unarchive it in its settings"


# --- Conflicts ------------------------------------------------------------------------------------------
class Conflict(AccessError):
    """The current state does not allow the change."""

    code = "conflict"
    status = 409


class SlugTaken(Conflict):
    """Another project has this slug."""

    code = "slug_taken"


class AlreadyMember(Conflict):
    """The user is a member already."""

    code = "already_member"


class LastAdmin(Conflict):
    """The change would leave the project without an admin."""

    code = "last_admin"
    text = "the last admin of a project cannot be removed or demoted: make another user an admin first"


class NotArchivable(Conflict):
    """Runs of the project are in progress."""

    code = "runs_in_progress"


class NotArchived(Conflict):
    """The project has to be archived first."""

    code = "project_not_archived"
    text = "only an archived project can be deleted: archive it first"


class RunsOnHold(Conflict):
    """Runs of the project are on hold."""

    code = "runs_on_hold"


class ImportsInProgress(Conflict):
    """Files of the project are being imported."""

    code = "imports_in_progress"
    text = "files are being imported: wait until their imports end"


class AlreadyInvited(Conflict):
    """The project has invited the e-mail address already, or has too many open invitations."""

    code = "already_invited"


class AddressTaken(Conflict):
    """Another account has verified the e-mail address. Raised only for a user who received a link at the address."""

    code = "address_taken"
    text = "another account has verified this address: remove it there first, or use another one"


class KeyNotActive(Conflict):
    """The API key is revoked or expired."""

    code = "key_not_active"
    text = "the API key is revoked or expired: create a new one"


class AmbiguousKey(Conflict):
    """Several API keys have this prefix."""

    code = "ambiguous_key"
    exit_code: ClassVar[int] = 4


# --- Invalid values -------------------------------------------------------------------------------------
class Invalid(AccessError):
    """A value is invalid."""

    code = "invalid"
    status = 422


class InvalidSlug(Invalid):
    """The slug is invalid."""

    code = "invalid_slug"


class InvalidName(Invalid):
    """The name is invalid."""

    code = "invalid_name"


class InvalidRetention(Invalid):
    """The retention period is invalid."""

    code = "invalid_retention"


class InvalidMaxRunning(Invalid):
    """The limit of running runs is invalid."""

    code = "invalid_max_running"


class InvalidEmail(Invalid):
    """The e-mail address is invalid."""

    code = "invalid_email"


class UserIsAddress(Invalid):
    """A member was named by an e-mail address. The error does not reveal whether an account has the address."""

    code = "user_is_address"


class InvalidDescription(Invalid):
    """The description is invalid."""

    code = "invalid_description"


class InvalidRole(Invalid):
    """The role does not exist."""

    code = "invalid_role"


class InvalidScopes(Invalid):
    """The scopes are invalid."""

    code = "invalid_scopes"


class NotConfirmed(Invalid):
    """The slug of the project was not entered to confirm."""

    code = "not_confirmed"


class InvalidExpiry(Invalid):
    """The expiry is invalid."""

    code = "invalid_expiry"


class InvalidRule(Invalid):
    """The redaction rule is invalid."""

    code = "invalid_rule"


class InvalidQuery(Invalid):
    """A query parameter or form field of a page is invalid."""

    code = "invalid_query"
    status = 400
