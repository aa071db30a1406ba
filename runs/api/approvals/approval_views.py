"""`…/approvals` and `…/agent-runs/{run}/approvals/{call}`: the tool calls that wait for a person, and the decisions."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from agentops.projects.access import Action
from runs.actions import approvals
from runs.api.action_views import ActionView
from runs.api.base_views import ListView
from runs.api.requests.bodies import Choice, Flag, IdField
from runs.api.requests.inputs import MessageField, RunBody
from runs.api.requests.queries import Choices, PageQuery
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, Approval

APPROVE, DENY = "approve", "deny"


class ApprovalRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A tool call that a person approves or denies."""

    call_id = serializers.UUIDField(help_text="ID of the tool call.")
    arguments = serializers.JSONField(
        help_text="The arguments that the call runs with: an object, or the text if they are not a JSON object."
    )
    changes = serializers.JSONField(
        allow_null=True, help_text="What the approver has changed: argument → `from` and `to`."
    )

    class Meta:
        model = Approval
        fields = (
            *("id", "run_id", "call_id", "tool_name", "arguments", "state", "reason", "requested_by", "created_at"),
            *("expires_at", "decided_by", "decided_at", "changes", "always", "message"),
        )
        extra_kwargs: ClassVar = {
            "reason": {"help_text": "Why a person is asked."},
            "requested_by": {"help_text": "`rule`, `tool` or `hook:` and its name."},
            "always": {"help_text": "The approval holds for all later calls of the tool in this run."},
            "message": {"help_text": "What the model was told about a denial."},
            "expires_at": {"help_text": "When the approval expires if nobody decides."},
        }


class ApprovalsQuery(PageQuery):
    run_id = IdField(required=False, help_text="Filter by run.")
    state = Choices(
        choices=Approval.State.values,
        required=False,
        help_text="Filter by state. Repeat the parameter or separate values with commas.",
        style={"example": ["pending"]},
    )


class ApprovalDecision(RunBody):
    decision = Choice(choices=[APPROVE, DENY])
    arguments = serializers.DictField(
        required=False,
        allow_null=True,
        default=None,
        help_text="For `approve`: the arguments to run the call with. Default: those that were shown. Values that "
        "were shown as `[REDACTED:…]` and are left unchanged keep their secret.",
    )
    always = Flag(
        required=False,
        default=False,
        help_text="For `approve`: also approve all later calls of this tool in this run.",
    )
    message = MessageField("For `deny`: what the model is told.")


class Approvals(ListView):
    """List the approvals of a project, newest first."""

    serializer_class = ApprovalRow
    query_class: ClassVar = ApprovalsQuery

    def get_queryset(self) -> QuerySet[Approval]:
        rows = Approval.objects.filter(project=self.get_project()).order_by("-pk")
        states, run_id = self.query.get("state"), self.query.get("run_id")
        rows = rows.filter(state__in=states) if states else rows
        return rows.filter(run=run_id) if run_id else rows


@extend_schema(responses=OpenApiResponse(ApprovalRow, "The approval as decided."))
class ApprovalDetail(ActionView):
    """Approve or deny a tool call that waits for a person. The same run continues with the decision.

    Only the first decision counts. Later ones are refused with `approval_decided`, which says how and by whom.
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
        return Response(ApprovalRow(result.approval).data)
