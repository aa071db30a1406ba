"""`…/approvals` and `…/agent-runs/{run}/approvals/{call}`: what waits for a person, and decisions about tool calls."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from agentops.accounts.access import Action
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.actions import approvals
from runs.api.action_views import ActionView
from runs.api.base_views import ListView
from runs.api.requests.bodies import Choice, Flag, IdField
from runs.api.requests.inputs import MessageField, RunBody
from runs.api.requests.pagination import Fetch
from runs.api.requests.queries import Choices, PageQuery
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, Approval
from runs.queries.json_lists import Key, Rows, RowSpan
from runs.queries.waiting_items import ItemKind, WaitingItem, waiting_items

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
        help_text="The arguments that the call runs with: an object, or the text if they are not a JSON object. Of a "
        "question to a person, they are `question` and `choices`.",
    )
    state = serializers.ChoiceField(
        choices=Approval.State.values,
        help_text="Questions and unknown outcomes are `pending`, and are listed no longer when they are settled.",
    )
    reason = serializers.CharField(help_text="Why a person is asked; empty for questions and unknown outcomes.")
    requested_by = serializers.CharField(help_text="`rule`, `tool` or `hook:` and its name; `agent` for a question.")
    created_at = serializers.DateTimeField(help_text="Since when it waits.")
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="When the approval expires if nobody decides. The others do not expire."
    )
    decided_by = serializers.CharField()
    decided_at = serializers.DateTimeField(allow_null=True)
    changes = serializers.JSONField(
        allow_null=True, help_text="What the approver has changed: argument → `from` and `to`."
    )
    always = serializers.BooleanField(help_text="The approval holds for all later calls of the tool in this run.")
    message = serializers.CharField(help_text="What the model was told about a denial.")

    def to_representation(self, instance: WaitingItem | Approval) -> dict[str, Any]:
        approval = instance if isinstance(instance, Approval) else instance.approval
        fields = _of_call(instance) if isinstance(instance, WaitingItem) and approval is None else vars(approval)
        row: dict[str, Any] = super().to_representation({"kind": ItemKind.APPROVAL, **fields})
        return row


def _of_call(item: WaitingItem) -> dict[str, Any]:
    """Return the fields of a question or of an unknown outcome, with their secrets redacted."""
    call = item.call
    return {
        "kind": item.kind, "id": item.id, "run_id": item.run.pk, "call_id": call.pk,
        "tool_name": REDACTOR.clean_text(call.tool_name)[0], "arguments": REDACTOR.clean(call.input)[0],
        "state": Approval.State.PENDING, "reason": "", "created_at": item.since, "expires_at": None,
        "requested_by": "agent" if item.kind is ItemKind.QUESTION else "",
        "decided_by": "", "decided_at": None, "changes": None, "always": False, "message": "",
    }  # fmt: skip


class ApprovalsQuery(PageQuery):
    kind = Choices(
        choices=[kind.value for kind in ItemKind],
        required=False,
        help_text="Filter by kind. Repeat the parameter or separate values with commas.",
        style={"example": ["question"]},
    )
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
    message = MessageField("For `deny`: a text that is sent to the model.")


class Approvals(ListView):
    """List what waits for a person in a project, newest first: approvals, questions and unknown outcomes.

    Approvals are listed after they were decided too; `state=pending` lists only what waits.
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
