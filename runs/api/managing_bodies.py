"""The bodies and answers of projects, members, invitations and API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from rest_framework import serializers

from agentops.accounts import keys
from agentops.accounts.login.addresses import is_verified
from agentops.accounts.memberships import MAX_RETENTION_DAYS
from agentops.accounts.models import ApiKey, Invitation, KeyState, Membership, Project, Role, Scope
from agentops.accounts.names import MAX_DESCRIPTION, MAX_NAME, MOST_RUNNING
from agentops.base import database_clock
from runs.api.answers import ProjectRow
from runs.api.requests.bodies import Choice, StrictSerializer, StringField, WholeField
from runs.api.requests.queries import Time

#: Maximum hours for which a replaced API key stays valid.
MAX_OVERLAP_HOURS = 30 * 24
_DEFAULT_OVERLAP_HOURS = int(keys.OVERLAP.total_seconds()) // 3600


def _count(text: str = "") -> serializers.IntegerField:
    return serializers.IntegerField(min_value=0, help_text=text)


# --- Projects -------------------------------------------------------------------------------------------------------


MAX_RUNNING = "Runs that workers execute at the same time; others wait in the queue. Null: no limit."


class ProjectChange(StrictSerializer):
    name = StringField(required=False, max_length=MAX_NAME)
    description = StringField(required=False, max_length=MAX_DESCRIPTION, help_text="Shown on the list of projects.")
    retention_days = WholeField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=MAX_RETENTION_DAYS,
        help_text="Days after which ended runs are deleted. Null: never.",
    )
    max_running = WholeField(
        required=False, allow_null=True, min_value=1, max_value=MOST_RUNNING, help_text=MAX_RUNNING
    )


class NewProject(StrictSerializer):
    slug = StringField(max_length=63, help_text="For URLs and commands: a-z, 0-9 and dashes. It cannot be changed.")
    name = StringField(required=False, max_length=MAX_NAME, help_text="Default: the slug.")
    description = StringField(required=False, max_length=MAX_DESCRIPTION, help_text="Shown on the list of projects.")


class ProjectAnswer(ProjectRow):
    class Meta(ProjectRow.Meta):
        fields: tuple[str, ...] = (*ProjectRow.Meta.fields, "retention_days", "max_running", "created_at")
        model = Project
        extra_kwargs: ClassVar = {
            **ProjectRow.Meta.extra_kwargs,
            "retention_days": {"help_text": "Days after which ended runs are deleted. Null: never."},
            "max_running": {"help_text": MAX_RUNNING},
        }


class Counts(serializers.Serializer):  # type: ignore[misc]
    """The number of objects of each kind in a project."""

    runs, flow_runs, events = _count(), _count(), _count()
    agents, flows, members, api_keys = _count(), _count(), _count(), _count()
    sinks = _count("Including webhooks.")
    alert_rules, schedules, imports, transcripts = _count(), _count(), _count(), _count()


class DeletionRefusal(serializers.Serializer):  # type: ignore[misc]
    code = serializers.CharField()
    detail = serializers.CharField()


class DeletionAnswer(serializers.Serializer):  # type: ignore[misc]
    """The objects that the deletion of a project would delete, and why it is refused now."""

    counts = Counts()
    refusal = DeletionRefusal(allow_null=True, help_text="Why the deletion is refused now. Null if it is allowed.")


class DeletedAnswer(serializers.Serializer):  # type: ignore[misc]
    """A project that workers delete."""

    counts = Counts()


# --- Members --------------------------------------------------------------------------------------------------------


class MemberRole(StrictSerializer):
    role = Choice(choices=Role.values)


class NewMember(MemberRole):
    user = StringField(
        allow_blank=False, max_length=254, help_text="Username of an account. To add an e-mail address, invite it."
    )


class MemberRow(serializers.ModelSerializer):  # type: ignore[misc]
    user = serializers.CharField(source="user.username", help_text="Username.")
    email = serializers.CharField(source="user.email", help_text="Empty: none.")
    email_verified = serializers.SerializerMethodField(help_text="Whether the user has opened a link sent to it.")
    is_active = serializers.BooleanField(source="user.is_active", help_text="Whether the account may log in.")

    class Meta:
        model = Membership
        fields = ("user", "email", "email_verified", "role", "is_active", "created_at")

    def get_email_verified(self, membership: Membership) -> bool:
        return is_verified(membership.user)


class NewInvitation(MemberRole):
    email = StringField(allow_blank=False, max_length=254, help_text="Address of a person, with or without an account.")


class InvitationRow(serializers.ModelSerializer):  # type: ignore[misc]
    """An invitation. Anyone with its URL can accept it, once."""

    url = serializers.SerializerMethodField(help_text="URL that accepts the invitation.")

    class Meta:
        model = Invitation
        fields: tuple[str, ...] = ("id", "email", "role", "url", "created_by", "created_at", "expires_at")

    def get_url(self, invitation: Invitation) -> str:
        return str(self.context["url_of"](invitation))


class SentInvitation(InvitationRow):
    is_sent = serializers.SerializerMethodField(help_text="Whether a mail server has accepted the e-mail with the URL.")

    class Meta(InvitationRow.Meta):
        fields = (*InvitationRow.Meta.fields, "is_sent")

    def get_is_sent(self, invitation: Invitation) -> bool:
        return bool(self.context["is_sent"])


# --- API keys -------------------------------------------------------------------------------------------------------


class BodyTime(Time):
    """A time as a JSON string in the form of RFC 3339."""

    def to_internal_value(self, data: Any) -> datetime:
        return super().to_internal_value(data if isinstance(data, str) else "")


class NewApiKey(StrictSerializer):
    name = StringField(allow_blank=False, max_length=MAX_NAME, help_text="The use of the key, such as ci or laptop.")
    scopes = serializers.ListField(child=Choice(choices=Scope.values), min_length=1, max_length=len(Scope))
    expires_at = BodyTime(required=False, default=None, allow_null=True, help_text="Null (default): never.")


class KeyRotation(StrictSerializer):
    overlap_hours = WholeField(
        required=False,
        default=_DEFAULT_OVERLAP_HOURS,
        min_value=0,
        max_value=MAX_OVERLAP_HOURS,
        help_text=f"Hours for which the old key stays valid. Default: {_DEFAULT_OVERLAP_HOURS}.",
    )


class ApiKeyRow(serializers.ModelSerializer):  # type: ignore[misc]
    """An API key without the key itself; only its hash is stored."""

    scopes = serializers.ListField(child=serializers.ChoiceField(Scope.values))
    state = serializers.SerializerMethodField()

    class Meta:
        model = ApiKey
        fields: tuple[str, ...] = (
            *("id", "prefix", "name", "scopes", "state", "created_by", "created_at", "expires_at", "revoked_at"),
            "last_used_at",
        )
        extra_kwargs: ClassVar = {
            "prefix": {"help_text": "Public part of the key, which logs and the audit log show."},
            "created_by": {"help_text": "Creator of the key; empty if it is not known."},
        }

    def get_state(self, key: ApiKey) -> KeyState:
        return key.state(database_clock.now())


class ApiKeyWithSecret(ApiKeyRow):
    """A new API key. Only this answer has the key itself."""

    key = serializers.SerializerMethodField(help_text="The key. It is shown only once.")

    class Meta(ApiKeyRow.Meta):
        fields = ("key", *ApiKeyRow.Meta.fields)

    def get_key(self, key: ApiKey) -> str:
        return str(self.context["plain"])
