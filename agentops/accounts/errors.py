"""The refusals of accounts that are caught by type, or raised in several places."""

from __future__ import annotations

from uuid import UUID

from agentops.base.refusals import Conflict, Forbidden, Invalid, NotFound, Refusal


# --- Authentication -------------------------------------------------------------------------------------
class AuthRequired(Refusal):
    """The request has no credentials."""

    code = "auth_required"
    status = 401
    text = "log in, or send an API key as a Bearer token"


class AuthInvalid(Refusal):
    """The API key is invalid. The message is the same for all reasons, so that guesses learn nothing."""

    code = "auth_invalid"
    status = 401
    text = "the API key is not valid"


class AuthRevoked(Refusal):
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


class RoleRequired(Forbidden):
    """The user lacks a role."""

    code = "role_required"


class ProjectArchived(Forbidden):
    """The project is archived, so it cannot be changed."""

    code = "project_archived"
    text = "the project is archived and read-only: an admin can unarchive it in its settings"


# --- Conflicts ------------------------------------------------------------------------------------------
class AlreadyMember(Conflict):
    """The user is a member already."""

    code = "already_member"


class NotArchivable(Conflict):
    """Runs of the project are in progress."""

    code = "runs_in_progress"


class AddressTaken(Conflict):
    """Another account has verified the e-mail address. Raised only for a user who received a link at the address."""

    code = "address_taken"
    text = "another account has verified this address: remove it there first, or use another one"


# --- Invalid values -------------------------------------------------------------------------------------
class InvalidSlug(Invalid):
    """The slug is invalid."""

    code = "invalid_slug"


class InvalidRetention(Invalid):
    """The retention period is invalid."""

    code = "invalid_retention"


class InvalidEmail(Invalid):
    """The e-mail address is invalid."""

    code = "invalid_email"


class NotConfirmed(Invalid):
    """The slug of the project was not entered to confirm."""

    code = "not_confirmed"


class InvalidRule(Invalid):
    """The redaction rule is invalid."""

    code = "invalid_rule"
