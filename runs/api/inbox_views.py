"""What needs the attention of people.

`…/approvals` lists what waits for a person; `…/agent-runs/{run}/approvals/{call}` decides about a tool call.
`…/notifications` lists the notifications of a project; `…/notifications/read` marks them as read.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts import notifications
from agentops.accounts.access import Action
from agentops.accounts.errors import RoleRequired
from agentops.accounts.models import Project
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.actions import approvals
from runs.api.action_views import ActionView
from runs.api.answers import NotificationRow, ReadAnswer
from runs.api.base_views import ListView
from runs.api.requests.bodies import Choice, Flag, IdField, StrictSerializer
from runs.api.requests.inputs import MAX_IDS, MessageField, RunBody
from runs.api.requests.pagination import Fetch
from runs.api.requests.queries import Choices, PageQuery
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, Approval
from runs.queries.json_lists import Key, Rows, RowSpan
from runs.queries.waiting_for_people import ItemKind, WaitingItem, waiting_items

APPROVE, DENY = "approve", "deny"


class WaitingRow(serializers.Serializer):  # type: ignore[misc]
    """What waits for a person: an approval, a question of an agent, or a tool call with an unknown outcome."""

    kind = serializers.ChoiceField(
        choices=[kind.value for kind in ItemKind],
        help_text="`approval`: approve or deny it by `POST …/agent-runs/{run}/approvals/{call}`. `question`: answer it "
        "by `POST …/agent-runs/{run}/commands` with the type `reply`. `unknown_outcome`: resolve it by "
        "`POST …/agent-runs/{run}/tool-calls/{call}/resolve`.",
    )
    id = serializers.UUIDField(help_text="ID of the approval, or of the tool call.")
    run_id = serializers.UUIDField()
    call_id = serializers.UUIDField(help_text="ID of the tool call.")
    tool_name = serializers.CharField()
    arguments = serializers.JSONField(
        allow_null=True,
        help_text="The arguments of the call: an object, or text if they are not a JSON object. A question to a "
        "person has the arguments `question` and `choices`.",
    )
    state = serializers.ChoiceField(
        choices=Approval.State.values,
        help_text="The state of an approval. Questions and unknown outcomes are always `pending`: once they are "
        "settled, they are not listed.",
    )
    reason = serializers.CharField(help_text="Reason of the request; empty for questions and unknown outcomes.")
    requested_by = serializers.CharField(
        help_text="For an approval `rule`, `tool`, or `hook:` and the hook's name; `agent` for a question."
    )
    created_at = serializers.DateTimeField(help_text="Time at which the wait began.")
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="When the approval expires if nobody decides. Null for what does not expire."
    )
    decided_by = serializers.CharField()
    decided_at = serializers.DateTimeField(allow_null=True)
    changes = serializers.JSONField(
        allow_null=True, help_text="Arguments that the approver changed: argument → `from` and `to`."
    )
    always = serializers.BooleanField(
        help_text="Whether the approval also holds for later calls of the tool in this run."
    )
    message = serializers.CharField(help_text="The text that was sent to the model with a denial.")

    def to_representation(self, instance: WaitingItem | Approval) -> dict[str, Any]:
        approval = instance if isinstance(instance, Approval) else instance.approval
        fields = _of_call(instance) if isinstance(instance, WaitingItem) and approval is None else vars(approval)
        row: dict[str, Any] = super().to_representation({"kind": ItemKind.APPROVAL, **fields})
        return row


def _of_call(item: WaitingItem) -> dict[str, Any]:
    """Return the fields of a question or of an unknown outcome, with their secrets redacted."""
    call = item.call
    return {
        "kind": item.kind,
        "id": item.id,
        "run_id": item.run.pk,
        "call_id": call.pk,
        "tool_name": REDACTOR.clean_text(call.tool_name)[0],
        "arguments": REDACTOR.clean(call.input)[0],
        "state": Approval.State.PENDING,
        "reason": "",
        "created_at": item.since,
        "expires_at": None,
        "requested_by": "agent" if item.kind is ItemKind.QUESTION else "",
        "decided_by": "",
        "decided_at": None,
        "changes": None,
        "always": False,
        "message": "",
    }


class ApprovalsQuery(PageQuery):
    kind = Choices(
        choices=[kind.value for kind in ItemKind],
        help_text="Filter by kind.",
        style={"example": ["question"]},
    )
    run_id = IdField(required=False, help_text="Filter by run.")
    state = Choices(
        choices=Approval.State.values,
        help_text="Filter by state.",
        style={"example": ["pending"]},
    )


class ApprovalDecision(RunBody):
    decision = Choice(choices=[APPROVE, DENY])
    arguments = serializers.DictField(
        required=False,
        allow_null=True,
        default=None,
        help_text="For `approve`: the arguments to run the call with. Default: its own. A value that is sent as it was "
        "shown, masked as `[REDACTED:…]`, keeps its secret.",
    )
    always = Flag(
        required=False,
        default=False,
        help_text="For `approve`: also approve all later calls of this tool in this run.",
    )
    message = MessageField("For `deny`: a text that is sent to the model.")


class Approvals(ListView):
    """List the approvals, questions and unknown outcomes of a project, newest first.

    By default the list also contains approvals that were already decided; `state=pending` lists only what waits for a
    person.
    """

    serializer_class = WaitingRow
    query_class: ClassVar = ApprovalsQuery

    def get_queryset(self) -> Fetch:
        projects, query = [self.get_project().pk], self.query
        kinds = [ItemKind(kind) for kind in query.get("kind", ItemKind)]

        def fetch(span: RowSpan) -> Rows:
            items = waiting_items(
                projects, span, kinds=kinds, states=query.get("state", ()), run_id=query.get("run_id")
            )
            return Rows(items, [(item.id.hex,) for item in items], [Key("id")])

        return fetch


@extend_schema(responses=OpenApiResponse(WaitingRow, "The approval as decided."))
class ApprovalDetail(ActionView):
    """Approve or deny a tool call that waits for a person. The same run continues with the decision.

    Only the first decision counts. Later ones are refused with `approval_decided`, which names the decision and its
    author.
    """

    serializer_class = ApprovalDecision
    required_action = Action.APPROVE

    def act(self, run: AgentRun, data: dict[str, Any]) -> Response:
        decision = Decision(
            approves=data["decision"] == APPROVE,
            arguments=data["arguments"],
            always=data["always"],
            message=data["message"] or "",
        )
        result = approvals.decide(self.principal, run, self.kwargs["call_id"], decision)
        return Response(WaitingRow(result.approval).data)


class NotificationSelection(StrictSerializer):
    """Requires exactly one field: `ids` or `up_to`."""

    ids = serializers.ListField(child=IdField(), required=False, allow_null=True, default=None, max_length=MAX_IDS)
    up_to = IdField(
        required=False, allow_null=True, default=None, help_text="Mark this notification and all older ones as read."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if (attrs["ids"] is None) == (attrs["up_to"] is None):
            raise ValidationError("exactly one of ids and up_to is required", "which_notifications")
        return attrs


class Notifications(ListView):
    """List the notifications of a project, newest first."""

    serializer_class = NotificationRow

    def get_queryset(self) -> QuerySet[Any]:
        return notifications.inbox(self.get_project().pk, self.principal.user_id)


class ReadNotifications(ActionView):
    """Mark notifications as read. Requires a signed-in user; API keys have no read state."""

    serializer_class = NotificationSelection

    @extend_schema(responses=ReadAnswer)
    def post(self, request: Request, **_: Any) -> HttpResponse:
        project, user_id = self.get_project(), self.principal.user_id
        if user_id is None:
            raise RoleRequired("API keys cannot mark notifications as read")
        return self.run_once(project, lambda data: self._mark(project, user_id, data))

    def _mark(self, project: Project, user_id: int, data: dict[str, Any]) -> Response:
        if data["up_to"] is not None:
            count = notifications.mark_all_read(project.pk, user_id, up_to=data["up_to"])
        else:
            count = notifications.mark_read(project.pk, user_id, data["ids"])
        return Response({"marked": count})
