"""`…/agent-runs/{run}` with changes of labels, its `…/notes` and `…/share-links`, and `…/saved-views`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse, QueryDict
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action, may
from agentops.accounts.models import Project
from runs.access import run_in
from runs.actions import run_annotations, saved_views
from runs.api.action_views import ActionView
from runs.api.base_views import ApiView, LinksShown, ListView
from runs.api.requests.bodies import Flag, LineField, StrictSerializer, StringField, WholeField, body_of
from runs.api.requests.inputs import Label
from runs.api.run_views import RunDetail
from runs.errors import RunNotFound
from runs.lifecycle import title_limits
from runs.models import RunNote, SavedView, ShareLink
from runs.queries.run_columns import RUN, runs_of, with_id
from runs.queries.run_lists.run_filters import Filters
from runs.queries.run_lists.run_order import RunOrder


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
    text = StringField(max_length=run_annotations.MAX_NOTE, allow_blank=False, help_text="Plain text.")


class NoteRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A note on a run."""

    class Meta:
        model = RunNote
        fields = ("id", "author", "text", "created_at", "edited_at")
        extra_kwargs: ClassVar = {
            "author": {"help_text": "`user:` or `key:`, and the name of the author."},
            "edited_at": {"help_text": "Null if the note was not edited."},
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
        default=run_annotations.DEFAULT_DAYS,
        min_value=1,
        max_value=run_annotations.MAX_DAYS,
        help_text=f"Days until the link expires. Default: {run_annotations.DEFAULT_DAYS}.",
    )


class ShareLinkRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A link to the report of a run. Anyone with its URL can read the report."""

    url = serializers.SerializerMethodField(help_text="URL of the report.")

    class Meta:
        model = ShareLink
        fields = ("id", "url", "created_by", "created_at", "expires_at", "view_count", "viewed_at")
        extra_kwargs: ClassVar = {"viewed_at": {"help_text": "Null if the link was not opened."}}

    def get_url(self, link: ShareLink) -> str:
        return str(self.context["url_of"](link))


# --- Views ---


class RunWithLabels(RunDetail):
    """Get a run."""

    @extend_schema(request=LabelChange, responses={200: RUN.schema()})
    def patch(self, request: Request, **_: Any) -> HttpResponse:
        """Change the labels of a run."""
        run, data = self.get_run(Action.OPERATE), body_of(LabelChange, request)
        run_annotations.change_labels(
            run.pk,
            by=self.principal,
            add=data.get("add_labels", ()),
            remove=data.get("remove_labels", ()),
            replace=data.get("labels"),
        )
        text = RUN.one(with_id(runs_of(run.project_id), "r.id", run.pk))
        if text is None:  # removed in the meantime
            raise RunNotFound("no such run")
        return self.etag_response(text)


class Notes(ListView, ActionView):
    """List the notes on a run, oldest first."""

    serializer_class = NoteRow
    body_class = NoteText

    def get_queryset(self) -> QuerySet[RunNote]:
        run = run_in(self.get_project(), self.kwargs["run_id"])
        return RunNote.objects.filter(run=run).order_by("pk")

    @extend_schema(request=NoteText, responses={201: OpenApiResponse(NoteRow, "The new note.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Add a note to a run."""
        return super().post(request, **options)

    def act(self, run: Any, data: dict[str, Any]) -> Response:
        return Response(NoteRow(run_annotations.add_note(run, data["text"], by=self.principal)).data, 201)


class NoteDetail(ApiView):
    """A note on a run."""

    @extend_schema(request=NoteText, responses=NoteRow)
    def patch(self, request: Request, **_: Any) -> Response:
        """Change the text of your own note."""
        run, data = self.get_run(Action.OPERATE), body_of(NoteText, request)
        return Response(
            NoteRow(run_annotations.edit_note(run, self.kwargs["note_id"], data["text"], by=self.principal)).data
        )

    @extend_schema(responses={204: OpenApiResponse(description="The note has been deleted.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Delete your own note. Admins can delete any note."""
        run = self.get_run(Action.OPERATE)
        manages = may(self.principal, Action.MANAGE, run.project_id)
        run_annotations.delete_note(run, self.kwargs["note_id"], by=self.principal, manages=manages)
        return Response(status=204)


class ShareLinks(LinksShown, ListView, ActionView):
    """List the active share links of a run, newest first. Requires a signed-in admin."""

    serializer_class = ShareLinkRow
    body_class = NewShareLink
    required_action = Action.MANAGE
    is_body_optional = True

    def get_queryset(self) -> QuerySet[ShareLink]:
        run = run_in(self.get_project(Action.MANAGE), self.kwargs["run_id"])
        ids = [link.pk for link in run_annotations.links_of(run)]
        return ShareLink.objects.filter(pk__in=ids).order_by("-pk")

    @extend_schema(request=NewShareLink, responses={201: OpenApiResponse(ShareLinkRow, "The new link.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Create a link to the report of a run, for readers without an account. Requires a signed-in admin."""
        return super().post(request, **options)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "url_of": self._url}

    def act(self, run: Any, data: dict[str, Any]) -> Response:
        link = run_annotations.share(run, data["days"], by=self.principal)
        return Response(ShareLinkRow(link, context={"url_of": self._url}).data, 201)

    def _url(self, link: ShareLink) -> str:
        path = reverse("runs:share-link", args=[run_annotations.token_of(link)])
        return str(self.request.build_absolute_uri(path))


class ShareLinkDetail(ApiView):
    """A share link of a run."""

    @extend_schema(responses={204: OpenApiResponse(description="The link has been revoked.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Revoke a share link. Requires a signed-in admin."""
        run = self.get_run(Action.MANAGE)
        run_annotations.revoke(run, self.kwargs["link_id"], by=self.principal)
        return Response(status=204)


class SavedViews(ListView, ActionView):
    """List your saved views of the run list, and views that other users share."""

    serializer_class = SavedViewRow
    body_class = SavedViewChange
    #: Enough to save a view; the permission to share it is checked by `saved_views`.
    required_action = Action.READ

    def get_queryset(self) -> QuerySet[SavedView]:
        return saved_views.views_of(self.get_project(), self.principal.user_id).order_by("pk")

    @extend_schema(request=SavedViewChange, responses={201: OpenApiResponse(SavedViewRow, "The saved view.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Save a view, or replace your view of this name. Requires a signed-in user."""
        return super().post(request, **options)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "principal": self.principal if self.request else None}

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        view = saved_views.save_view(project, by=self.principal, **{**data, "query": _query(data["query"])})
        return Response(SavedViewRow(view, context={"principal": self.principal}).data, 201)


class SavedViewDetail(ApiView):
    """A saved view."""

    @extend_schema(request=SavedViewChange(partial=True), responses=SavedViewRow)
    def patch(self, request: Request, **_: Any) -> Response:
        """Change your own view. Omitted fields stay unchanged."""
        project, data = self.get_project(), body_of(SavedViewChange, request, partial=True)
        if "query" in data:
            data["query"] = _query(data["query"])
        view = saved_views.change_view(project, self.kwargs["view_id"], by=self.principal, **data)
        return Response(SavedViewRow(view, context={"principal": self.principal}).data)

    @extend_schema(responses={204: OpenApiResponse(description="The view has been deleted.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Delete your own view. Admins can also delete shared views."""
        saved_views.delete_view(self.get_project(), self.kwargs["view_id"], by=self.principal)
        return Response(status=204)


def _query(text: str) -> str:
    """Return a query string without the parts that a view does not store. Raises `InvalidQuery`."""
    query = QueryDict(text.removeprefix("?"), mutable=True)
    Filters.parse(query)
    RunOrder.parse(query)
    for name in ("before", "after", "all"):
        query.pop(name, None)
    return query.urlencode()
