"""The answers of the API as DRF serializers.

Runs, messages, tool calls and events have no serializer: the database writes them as JSON (runs/queries).
"""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.db.models import Count, Q, Sum
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from agentops.accounts.models import Notification, Project
from agentops.base.refusals import MAX_FAULTS
from runs.agents import placement
from runs.api.requests.pagination import LINK, object_of
from runs.conversation.turn_usage import buckets_of
from runs.conversation.writes import TOKENS
from runs.models import Agent, AgentRun, AgentVersion, Checkpoint, RunCommand, RunError, SearchEntry, TurnUsage
from runs.queries.run_columns import RUN
from runs.queries.searching.search_results import Result
from runs.statuses import RunStatus

#: Prefix of the stored idempotency keys of commands from the API. Commands from pages and recordings have other keys.
KEYS = "api:"
#: The schema of a run that continues another one, with the member `already_resumed`.
RESUMED_RUN = object_of(
    RUN.schema()["properties"]
    | {"already_resumed": {"type": "boolean", "description": "True if it was resumed before this request."}}
)
COMMAND_OR_RUN = {"anyOf": [{"$ref": "#/components/schemas/CommandAnswer"}, RESUMED_RUN]}
# Help texts of fields that several serializers have.
_ATTEMPT = "Attempt, from 0."
INPUT_TOKENS = "All tokens sent, including those read from and written to the prompt cache."
OUTPUT_TOKENS = "All tokens received, including reasoning."
COST_SOURCES = (
    "`project`: by the project's prices; `reported` by the provider; `computed` from published prices; `unknown`."
)
WRITTEN_1H = "Part of `cache_write_tokens`: those written for one hour."
UNPRICED = "Model calls whose cost is unknown. If there are any, `cost_usd` is a lower bound."
TIER = (
    "What changes the price: `fast`, `batch`, `flex`, `priority`, `us-only`, another tier, or several joined by `+`. "
    "Empty for the standard price."
)
_COSTS = ("cost_usd", "cost_source", "unpriced_calls")
#: The totals of abandoned and of repeated model calls.
_PARTIAL_TOTALS = ("calls", "input_tokens", "output_tokens", "cost_usd")


def _help_texts(**texts: str) -> dict[str, dict[str, str]]:
    """Return the `extra_kwargs` of a serializer that sets the help texts of these fields."""
    return {name: {"help_text": text} for name, text in texts.items()}


class ProjectRow(serializers.ModelSerializer):  # type: ignore[misc]
    class Meta:
        model = Project
        fields: tuple[str, ...] = ("id", "slug", "name", "description", "archived_at")
        extra_kwargs: ClassVar = _help_texts(
            archived_at="Since when the project is read-only. Null if it is not archived."
        )


class AgentRow(serializers.ModelSerializer):  # type: ignore[misc]
    agent_id = serializers.CharField(source="slug", help_text="Name of the agent.")
    tools = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Agent
        fields: tuple[str, ...] = (
            *("id", "agent_id", "provider", "model", "tools", "max_steps", "version", "created_at", "updated_at"),
            *placement.FIELDS,
        )


class AgentAnswer(AgentRow):
    settings = serializers.DictField()
    policies = serializers.DictField()

    class Meta(AgentRow.Meta):
        fields = (*AgentRow.Meta.fields, "instructions", "settings", "policies")


class AgentVersionRow(serializers.ModelSerializer):  # type: ignore[misc]
    changed = serializers.ListField(
        child=serializers.CharField(), help_text="The fields that differ from the previous version."
    )

    class Meta:
        model = AgentVersion
        fields: tuple[str, ...] = ("id", "number", "changed", "created_by", "created_at")
        extra_kwargs: ClassVar = _help_texts(
            number="The number of the version, from 1.", created_by="Author of the change; empty if it is not known."
        )


class AgentVersionAnswer(AgentVersionRow):
    definition = serializers.DictField(help_text="The definition, as a run of this version has it in `agent_config`.")

    class Meta(AgentVersionRow.Meta):
        fields = (*AgentVersionRow.Meta.fields, "definition")


class CheckpointRow(serializers.ModelSerializer):  # type: ignore[misc]
    class Meta:
        model = Checkpoint
        fields = ("id", "step_number", "last_message_position", "created_at")
        extra_kwargs: ClassVar = _help_texts(step_number="The step that the checkpoint follows.")


class ErrorRow(serializers.ModelSerializer):  # type: ignore[misc]
    class Meta:
        model = RunError
        fields = (
            *("id", "step_number", "context", "call_id", "error_type", "message", "details", "attempt", "created_at"),
        )
        extra_kwargs: ClassVar = _help_texts(
            context="What failed: the name of the tool, or `llm_stream`, `llm_complete`, `max_turns` or `step`.",
            call_id="The model's ID of the tool call; empty for other errors.",
            message="Explanation for people: what is wrong and what to do.",
            details="Message of the vendor or its library.",
            attempt=_ATTEMPT,
        )


class TokenBuckets(serializers.Serializer):  # type: ignore[misc]
    """The tokens by their kind. Each token is counted once; the sums are the input and the output tokens."""

    fresh_input = serializers.IntegerField(source="input", help_text="Input tokens outside the prompt cache.")
    cache_read = serializers.IntegerField()
    cache_write = serializers.IntegerField(
        help_text="Written to the prompt cache for five minutes, or for an unknown time."
    )
    cache_write_1h = serializers.IntegerField(help_text="Written to the prompt cache for one hour.")
    visible_output = serializers.IntegerField(source="output", help_text="Output tokens without reasoning.")
    reasoning = serializers.IntegerField()


class _UsageWithBuckets(serializers.ModelSerializer):  # type: ignore[misc]
    buckets = serializers.SerializerMethodField()

    @extend_schema_field(TokenBuckets)
    def get_buckets(self, row: TurnUsage | AgentRun) -> dict[str, int]:
        return TokenBuckets(buckets_of(row)).data  # type: ignore[no-any-return]


class UsageRow(_UsageWithBuckets):
    class Meta:
        model = TurnUsage
        fields = (
            *("id", "step_number", "attempt", "model", *TOKENS, "cost_usd", "duration_ms", "created_at", "outcome"),
            *("usage_complete", "cache_saved_usd", "cost_source", "cost_note", "tier", "buckets"),
        )
        extra_kwargs: ClassVar = _help_texts(
            attempt=_ATTEMPT,
            cost_usd="Null if unknown.",
            cost_source=COST_SOURCES,
            cost_note="Why the cost is unknown, or the vendor of the price, if another vendor answered.",
            tier=TIER,
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            cache_write_1h_tokens=WRITTEN_1H,
            outcome="`answered`; `abandoned`: failed or stopped; `lost`, `rolled_back`: repeated after a crash; "
            "`program`: no call, but tokens that a program reports in addition to those of its answers.",
            usage_complete="False if the provider did not report all tokens. Tokens and cost are what it reported.",
            cache_saved_usd="Cost without the prompt cache, minus `cost_usd`. Negative if the cache was only written.",
        )


class Money(serializers.DecimalField):  # type: ignore[misc]
    def __init__(self, help_text: str = "") -> None:
        super().__init__(max_digits=16, decimal_places=8, allow_null=True, help_text=help_text)


class ModelTotals(serializers.Serializer):  # type: ignore[misc]
    """The usage of the calls of one model."""

    model = serializers.CharField()
    calls = serializers.IntegerField()
    input_tokens, output_tokens = serializers.IntegerField(), serializers.IntegerField()
    cache_read_tokens, cache_write_tokens = serializers.IntegerField(), serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField()
    cache_write_1h_tokens = serializers.IntegerField(help_text=WRITTEN_1H)
    cost_usd = Money("Null if unknown.")
    unpriced_calls = serializers.IntegerField(source="unpriced", help_text=UNPRICED)


class UsageTotals(_UsageWithBuckets):
    """The usage of the model calls of a run."""

    model_calls = serializers.IntegerField(
        help_text="Includes calls without an answer, unless the provider refused them.",
    )
    cache_saved_usd = Money("The cost without the prompt cache, minus the cost of the calls that used it.")
    abandoned_calls = serializers.IntegerField(help_text="Model calls that failed or were stopped; part of the totals.")
    abandoned_input_tokens = serializers.IntegerField()
    abandoned_output_tokens = serializers.IntegerField()
    abandoned_cost_usd = Money()
    repeated_calls = serializers.IntegerField(help_text="Model calls repeated after a crash; part of the totals.")
    repeated_input_tokens = serializers.IntegerField()
    repeated_output_tokens = serializers.IntegerField()
    repeated_cost_usd = Money()
    incomplete_usage_calls = serializers.IntegerField(
        help_text="Calls for which the provider did not report all tokens: it may bill more than the totals."
    )

    class Meta:
        model = AgentRun
        fields = (
            *("model_calls", *TOKENS, "cost_usd", "unpriced_calls", "cost_source", "cache_saved_usd", "buckets"),
            *(f"{name}_{field}" for name in ("abandoned", "repeated") for field in _PARTIAL_TOTALS),
            "incomplete_usage_calls",
        )
        extra_kwargs: ClassVar = _help_texts(
            cost_usd="Null if unknown.",
            unpriced_calls=UNPRICED,
            cost_source=COST_SOURCES,
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            cache_write_1h_tokens=WRITTEN_1H,
        )


def usage_totals(run_id: UUID) -> AgentRun | None:
    """Return the run with the totals of its model calls, or None if it does not exist. One query."""
    totals = {
        "model_calls": Count("turn_usages", filter=~Q(turn_usages__outcome="program")),
        "cache_saved_usd": Sum("turn_usages__cache_saved_usd"),
        "incomplete_usage_calls": Count("turn_usages", filter=Q(turn_usages__usage_complete=False)),
    }
    for name, outcomes in (("abandoned", ["abandoned"]), ("repeated", ["lost", "rolled_back"])):
        condition = Q(turn_usages__outcome__in=outcomes)
        totals[f"{name}_calls"] = Count("turn_usages", filter=condition)
        totals[f"{name}_cost_usd"] = Sum("turn_usages__cost_usd", filter=condition)
        for kind in ("input_tokens", "output_tokens"):
            totals[f"{name}_{kind}"] = Sum(f"turn_usages__{kind}", filter=condition, default=0)
    return AgentRun.objects.filter(pk=run_id).annotate(**totals).only(*TOKENS, *_COSTS).first()


@extend_schema_field(LINK)
class PageLink(serializers.CharField):  # type: ignore[misc]
    pass


@extend_schema_serializer(many=False)
class UsagePage(serializers.Serializer):  # type: ignore[misc]
    """The totals of the run and of each model, and a page of the usage of its model calls."""

    totals = UsageTotals()
    models = ModelTotals(many=True)
    next, previous = PageLink(), PageLink()
    results = UsageRow(many=True)


class SearchRow(serializers.Serializer):  # type: ignore[misc]
    """A message, a tool call or an event that contains all terms."""

    kind = serializers.ChoiceField(choices=SearchEntry.Kind.values)
    run_id = serializers.SerializerMethodField(help_text="ID of the run; null for an event of a flow run.")
    flow_run_id = serializers.SerializerMethodField(help_text="For an event of a flow run: ID of the flow run.")
    message_id = serializers.SerializerMethodField(help_text="For a message: its ID.")
    tool_call_id = serializers.SerializerMethodField(help_text="For a tool call: its ID, not the model's `call_id`.")
    seq = serializers.IntegerField(
        help_text="The event by which the timeline shows the entry: `/runs/{run_id}?event={seq}`, or "
        "`/flow-runs/{flow_run_id}?event={seq}`."
    )
    step = serializers.IntegerField(allow_null=True)
    name = serializers.CharField(help_text="The role of a message, the tool of a call, or the type of an event.")
    status = serializers.CharField(help_text="The status of a tool call. Empty for messages and events.")
    is_error = serializers.BooleanField(
        help_text="Whether the call failed, was denied or has an unknown outcome, or the event reports a failure."
    )
    at = serializers.DateTimeField(help_text="The time of the event.")
    agent_id = serializers.CharField(help_text="Name of the run's agent. Empty for a flow run.")
    run_title = serializers.CharField(help_text="The title of the run or of the flow.")
    run_status = serializers.ChoiceField(choices=[status.value for status in RunStatus])
    text = serializers.CharField(source="excerpt.text", help_text="The text around the first match.")
    matches = serializers.SerializerMethodField(
        help_text="The positions of the terms in `text`: start and end of each match, in Unicode characters."
    )

    @extend_schema_field({"type": ["string", "null"], "format": "uuid"})
    def get_run_id(self, result: Result) -> UUID | None:
        return None if result.is_flow else result.run_id

    @extend_schema_field({"type": ["string", "null"], "format": "uuid"})
    def get_flow_run_id(self, result: Result) -> UUID | None:
        return result.run_id if result.is_flow else None

    @extend_schema_field({"type": ["string", "null"], "format": "uuid"})
    def get_message_id(self, result: Result) -> UUID | None:
        return result.ref_id if result.kind == SearchEntry.Kind.MESSAGE else None

    @extend_schema_field({"type": ["string", "null"], "format": "uuid"})
    def get_tool_call_id(self, result: Result) -> UUID | None:
        return result.ref_id if result.kind == SearchEntry.Kind.TOOL_CALL else None

    @extend_schema_field({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}})
    def get_matches(self, result: Result) -> list[tuple[int, int]]:
        return result.excerpt.marks


@extend_schema_serializer(many=False)
class SearchPage(serializers.Serializer):  # type: ignore[misc]
    """A page of results."""

    lag_s = serializers.IntegerField(
        help_text="Seconds by which the index is behind the log; 0 if only a few. Newer texts are not found."
    )
    next, previous = PageLink(), PageLink()
    results = SearchRow(many=True)


class NotificationRow(serializers.ModelSerializer):  # type: ignore[misc]
    read = serializers.SerializerMethodField(
        help_text="Whether the user has read it. Null for API keys, which have no read state."
    )

    class Meta:
        model = Notification
        fields = ("id", "kind", "title", "text", "run_id", "created_at", "read")
        extra_kwargs: ClassVar = _help_texts(
            kind=f"`{'` or `'.join(Notification.Kind.values)}`.", run_id="The run that the notification is about."
        )

    def get_read(self, row: Any) -> bool | None:
        return None if self.context["request"].user.user_id is None else bool(row.is_read)


class ReadAnswer(serializers.Serializer):  # type: ignore[misc]
    marked = serializers.IntegerField(help_text="Number of notifications that were unread.")


class ResumedOne(serializers.Serializer):  # type: ignore[misc]
    """A run that was resumed, and the new run that continues it (`resumed_as`; null in a dry run)."""

    id = serializers.UUIDField(source="run_id")
    resumed_as = serializers.UUIDField(allow_null=True)


class SkippedOne(serializers.Serializer):  # type: ignore[misc]
    """A run that was not resumed, and why."""

    id = serializers.UUIDField(source="run_id")
    code = serializers.CharField()
    reason = serializers.CharField()


class ResumedMany(serializers.Serializer):  # type: ignore[misc]
    resumed = ResumedOne(many=True)
    skipped = SkippedOne(many=True)


class CommandAnswer(serializers.ModelSerializer):  # type: ignore[misc]
    """A recorded command. `id` is null if the run already was in the requested state: no command was recorded."""

    id = serializers.UUIDField(allow_null=True)
    run_status = serializers.ChoiceField(choices=[status.value for status in RunStatus], source="run.status")
    key = serializers.SerializerMethodField()
    payload = serializers.DictField()

    class Meta:
        model = RunCommand
        #: The fields of every answer. There are no others if no command was recorded.
        always = ("id", "run_id", "run_status", "type")
        fields = (*always, "key", "payload", "created_by", "received_at", "applied_at", "outcome")
        extra_kwargs: ClassVar = _help_texts(
            applied_at="Time at which the outcome was decided. Null while the command is pending.",
            outcome="`applied`: it took effect; `superseded`: something else came first; `refused`: the run "
            "had ended. Null while the command is pending.",
        )

    def get_key(self, command: RunCommand) -> str | None:
        return None if command.key is None else command.key.removeprefix(KEYS)


class RefusalFault(serializers.Serializer):  # type: ignore[misc]
    """An invalid part of the request."""

    pointer = serializers.CharField(
        help_text="A JSON pointer into the body, `?` and the name of a query parameter, or the name of a header."
    )
    code = serializers.CharField()
    detail = serializers.CharField()


@extend_schema_serializer(component_name="Problem")
class ProblemAnswer(serializers.Serializer):  # type: ignore[misc]
    """A refusal (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField(help_text="Machine-readable code.")
    detail = serializers.CharField(help_text="Explanation for people.")
    request_id = serializers.CharField(help_text="ID of the request in the server's log.")
    errors = serializers.ListField(child=RefusalFault(), max_length=MAX_FAULTS)
