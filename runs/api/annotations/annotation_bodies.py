"""The bodies and answers of labels, notes, saved views and share links."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from runs.actions.annotations import run_notes, saved_views, share_links
from runs.api.requests.bodies import Flag, LineField, StrictSerializer, StringField, WholeField
from runs.api.requests.inputs import Label
from runs.lifecycle import title_limits
from runs.models import RunNote, SavedView, ShareLink


def _labels(text: str) -> serializers.ListField:
    return serializers.ListField(child=Label(), required=False, max_length=title_limits.MAX_LABELS, help_text=text)


class LabelChange(StrictSerializer):
    """Changes to the labels of a run: either `labels`, or one or both of the others."""

    labels = _labels("Replaces all labels.")
    add_labels = _labels("Labels to add.")
    remove_labels = _labels("Labels to remove.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs or ("labels" in attrs and len(attrs) > 1):
            raise ValidationError("either labels, or add_labels and remove_labels, are required", "which_labels")
        return attrs


class NoteText(StrictSerializer):
    text = StringField(max_length=run_notes.MAX_NOTE, allow_blank=False, help_text="Plain text.")


class NoteRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A note on a run."""

    class Meta:
        model = RunNote
        fields = ("id", "author", "text", "created_at", "edited_at")
        extra_kwargs: ClassVar = {
            "author": {"help_text": "`user:` or `key:` and the name of who wrote it."},
            "edited_at": {"help_text": "Null: it was not edited."},
        }


class SavedViewChange(StrictSerializer):
    name = LineField(allow_blank=False, max_length=saved_views.MAX_NAME, help_text="Unique among your views.")
    query = StringField(
        max_length=saved_views.MAX_QUERY, help_text="Query string of the run list: filters, `sort`, `order`, `columns`."
    )
    is_shared = Flag(required=False, help_text="Shown to all members. Default: false.")
    is_default = Flag(required=False, help_text="Your list starts with it. Default: false.")


class SavedViewRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A saved view of the run list."""

    is_own = serializers.SerializerMethodField(help_text="Whether you may change it.")

    class Meta:
        model = SavedView
        fields = ("id", "name", "query", "is_shared", "is_default", "is_own", "created_at")

    def get_is_own(self, view: SavedView) -> bool:
        return bool(view.owner_id == self.context["principal"].user_id)


class NewShareLink(StrictSerializer):
    days = WholeField(
        required=False,
        default=share_links.DEFAULT_DAYS,
        min_value=1,
        max_value=share_links.MAX_DAYS,
        help_text=f"Until it expires. Default: {share_links.DEFAULT_DAYS}.",
    )


class ShareLinkRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A link to the report of a run. Whoever has its URL can read the report."""

    url = serializers.SerializerMethodField(help_text="URL of the report.")

    class Meta:
        model = ShareLink
        fields = ("id", "url", "created_by", "created_at", "expires_at", "view_count", "viewed_at")
        extra_kwargs: ClassVar = {"viewed_at": {"help_text": "Null: it was not opened."}}

    def get_url(self, link: ShareLink) -> str:
        return str(self.context["url_of"](link))
