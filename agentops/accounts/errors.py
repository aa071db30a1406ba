"""Refusals about accounts, projects and keys that are caught by type or raised in several places."""

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
    """The API key is invalid. The text is the same for all reasons, so that it does not help to guess keys."""

    code = "auth_invalid"
    status = 401
    text = "the API key is not valid"


class AuthRevoked(Refusal):
    """The API key is revoked or expired. Raised only if the whole key is right."""

    code = "auth_revoked"
    status = 401
    text = "the API key is revoked or expired: ask a project admin for a new one"

    def __init__(self, text: str = "", *, project_id: UUID | None = None, prefix: str = "") -> None:
        super().__init__(text)
        #: The project and the prefix of the key, to count refused requests.
        self.project_id, self.prefix = project_id, prefix


class LoginRefused(Refusal):
    """A login by the OpenID provider is refused. The text says why: the provider has identified the person."""

    code = "login_refused"
    status = 403


class ProviderUnavailable(Refusal):
    """The OpenID provider does not answer."""

    code = "provider_unavailable"
    status = 503
    text = "the provider of this login does not answer: try again later, or log in with your password"
    headers = {"Retry-After": "30"}


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
    """The invitation does not exist, has expired, or was accepted or withdrawn."""

    code = "invitation_not_found"
    text = "this invitation is not valid: it has expired, or it was used or withdrawn"


class AddressLinkInvalid(NotFound):
    """A link that verifies an e-mail address is forged, used, replaced, or for another account or address."""

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
    """The user is already a member of the project."""

    code = "already_member"


class NotArchivable(Conflict):
    """Runs of the project are in progress."""

    code = "runs_in_progress"


class AddressTaken(Conflict):
    """Another account has verified the e-mail address. Raised only for a user who has received mail at the address."""

    code = "address_taken"
    text = "another account has verified this address: remove it there first, or use another one"


# --- Invalid values -------------------------------------------------------------------------------------
class InvalidSlug(Invalid):
    """The slug is invalid."""

    code = "invalid_slug"


class InvalidEmail(Invalid):
    """The e-mail address is invalid."""

    code = "invalid_email"


class NotConfirmed(Invalid):
    """The slug of the project was not entered as a confirmation."""

    code = "not_confirmed"


class InvalidRule(Invalid):
    """The redaction rule is invalid."""

    code = "invalid_rule"
