"""The bodies of POST requests about runs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.validators import RegexValidator
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from runs.actions.unknown_calls import OutcomeChoice
from runs.agents.definition import MAX_TEXT
from runs.api.requests.bodies import (
    Choice,
    Flag,
    Identifier,
    IdField,
    LineField,
    StrictSerializer,
    StringField,
    WholeField,
)
from runs.errors import InvalidMaxSteps
from runs.lifecycle import creation, inbox, title_limits
from timeline.models import RunKind

#: Maximum characters of a command's idempotency key as sent; it is stored with a prefix.
MAX_KEY = 120
#: Maximum IDs in a list.
MAX_IDS = 200
#: The fields of a body that may contain the ID of the run.
RUN_NAMES = ("run_id", "runId")
#: The key of the validated data with the set of these IDs, which `ActionView.run_once` reads.
BODY_RUN_IDS = "run IDs in the body"
#: Maximum characters of a run's ID on this site, or of its runner.
MAX_RUN_NAME = 255


class Label(LineField):
    """A short label; spaces around it are removed."""

    default_error_messages = {"blank": "a label must have at least one character"}

    def __init__(self) -> None:
        super().__init__(min_length=1, max_length=title_limits.MAX_LABEL, allow_blank=False)

    def to_internal_value(self, data: Any) -> str:
        label = super().to_internal_value(data)
        if not label:
            self.fail("blank")
        return label


class MaxSteps(WholeField):
    """A step limit, which runs.lifecycle.creation validates."""

    def __init__(self) -> None:
        text = "Step limit. Default: the limit of the agent, or of the run that is resumed or forked."
        bounds = {"min_value": 1, "max_value": settings.AGENTOPS_MAX_TOTAL_STEPS}
        super().__init__(required=False, allow_null=True, default=None, help_text=text, **bounds)
        # The bounds are for the OpenAPI document only; `to_internal_value` checks them.
        self.validators: list[Any] = []

    def to_internal_value(self, data: Any) -> int:
        try:
            return creation.checked_max_steps(data, default=0)
        except InvalidMaxSteps as error:
            raise ValidationError(str(error), error.code) from None


class MessageField(StringField):
    def __init__(self, help_text: str = "") -> None:
        bounds = {"max_length": inbox.MAX_MESSAGE, "help_text": help_text}
        super().__init__(required=False, allow_null=True, default=None, **bounds)


class AgentId(StringField):
    """The name of an agent. An invalid name is refused without a query."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=63, allow_blank=False, **options)
        # The pattern of a slug; the field checks the length.
        text = "this must contain only lower-case letters, digits and dashes, and not begin with a dash"
        self.validators.append(RegexValidator(r"\A[a-z0-9][a-z0-9-]*\Z", text, code="invalid_identifier"))


class RunBody(StrictSerializer):
    """A body of a request about the run of the URL. It may name the run; another run is refused (`run_mismatch`)."""

    run_id = StringField(required=False, max_length=MAX_RUN_NAME, help_text="Optional; must be the run of the URL.")
    runId = StringField(required=False, max_length=MAX_RUN_NAME, help_text="Same as `run_id`.")

    def to_internal_value(self, data: Any) -> Any:
        values = super().to_internal_value(data)
        values[BODY_RUN_IDS] = {values.pop(name) for name in RUN_NAMES if name in values}
        return values


class RunReference(StringField):
    """A runner's own ID of a run. It may be any printable text."""

    default_error_messages = {"invalid_identifier": "this must be a printable text"}

    def to_internal_value(self, data: Any) -> str:
        reference = super().to_internal_value(data)
        if not reference.isprintable():
            self.fail("invalid_identifier")
        return str(reference)


class NewRun(StrictSerializer):
    agent_id = AgentId(help_text="Name of the agent.")
    prompt = MessageField("First user turn. Optional for agents that play a fixture.")
    title = LineField(
        required=False, default="", max_length=title_limits.MAX_TITLE, help_text="Default: first line of the prompt."
    )
    labels = serializers.ListField(child=Label(), required=False, default=list, max_length=title_limits.MAX_LABELS)
    max_steps = MaxSteps()
    parent_run_id = IdField(required=False, allow_null=True, default=None, help_text="Parent run, in the same project.")
    source = Choice(
        ["native", "external"],
        required=False,
        default="native",
        help_text="`external`: the run is only recorded, and its runner sends the events.",
    )
    external_id = RunReference(
        required=False,
        allow_null=True,
        allow_blank=False,
        default=None,
        max_length=MAX_RUN_NAME,
        help_text="The runner's own ID of an external run, unique in the project.",
    )
    run_kind = Choice(
        RunKind.values,
        required=False,
        default="session",
        help_text="`job`: work without a conversation. Its events and the runs that continue it have the same kind.",
    )


class ResumeRun(RunBody):
    message = MessageField('Next user turn (default "continue").')
    append = Flag(required=False, default=True, help_text="False starts over with the message as the prompt.")
    max_steps = MaxSteps()
    kill = Flag(required=False, default=False, help_text="Stop the worker of a running run first. Admins only.")


class AgentChanges(StrictSerializer):
    """Changes to the agent of the fork. Omitted fields keep the values of the run's agent."""

    model = StringField(required=False, max_length=200)
    instructions = StringField(required=False, max_length=MAX_TEXT, help_text="Replaces the instructions.")
    max_steps = WholeField(required=False, min_value=1, help_text="Step limit of the fork.")
    settings = serializers.DictField(required=False, help_text="Replaces all settings.")


class NewFork(RunBody):
    """A fork. Exactly one of `step` and `checkpoint` is required."""

    step = WholeField(
        required=False, allow_null=True, default=None, min_value=1, help_text="Fork after this step of the lineage."
    )
    checkpoint = IdField(required=False, allow_null=True, default=None, help_text="ID of a checkpoint.")
    message = MessageField("Next user turn. Default: the fork continues from the tool results.")
    agent = AgentChanges(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if (attrs["step"] is None) == (attrs["checkpoint"] is None):
            raise ValidationError("exactly one of step and checkpoint is required", "where_to_fork")
        return {**attrs, "agent": attrs.get("agent", {})}


class RunFilter(StrictSerializer):
    """Selects the paused runs, and with `kill` also the running runs, that match all fields."""

    agent_id = AgentId(required=False, help_text="Filter by agent name.")
    status_reason = LineField(
        required=False, max_length=64, help_text="Filter by reason of the pause, such as `max_steps`."
    )
    parent_run_id = IdField(required=False, help_text="Filter by parent run.")
    root_run_id = IdField(
        required=False, help_text="Filter by lineage: the run with this ID and all runs that continue it."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise ValidationError("an empty filter is not allowed: use `all`", "empty_filter")
        return attrs


class ResumeRuns(StrictSerializer):
    """Requires exactly one field: `ids`, `filter` or `all`. `filter` and `all` are for admins only."""

    ids = serializers.ListField(
        child=IdField(),
        required=False,
        allow_null=True,
        default=None,
        max_length=MAX_IDS,
        help_text=f"Runs to resume, at most {MAX_IDS}.",
    )
    filter = RunFilter(required=False, allow_null=True, default=None, help_text="Resume the runs that match.")
    all = Flag(required=False, default=False, help_text="Resume every paused run of the project.")
    message = MessageField('Next user turn of each run (default "continue").')
    append = Flag(required=False, default=True, help_text="False starts over with the message as the prompt.")
    max_steps = MaxSteps()
    kill = Flag(
        required=False, default=False, help_text="Also resume running runs, after stopping their workers. Admins only."
    )
    dry_run = Flag(required=False, default=False, help_text="Only list the runs that would be resumed.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if [attrs["ids"] is not None, attrs["filter"] is not None, attrs["all"]].count(True) != 1:
            raise ValidationError("exactly one of ids, filter and all is required", "which_runs")
        return attrs


class EmptyBody(StrictSerializer):
    """An empty object, or no body."""


class EmptyRunBody(RunBody):
    """An object that may only name the run of the URL, or no body."""


class CallOutcome(RunBody):
    choice = Choice(choices=[choice.value for choice in OutcomeChoice])
    output = MessageField("For `done`: the output of the tool. Default: a message that the call is done.")
    message = MessageField("For `failed`: the error. Default: a message that the call has failed.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        for name, choice in (("output", OutcomeChoice.DONE), ("message", OutcomeChoice.FAILED)):
            if attrs[name] is not None and attrs["choice"] != choice:
                raise ValidationError({name: f"only allowed with the choice {choice}"}, "unknown_field")
        return attrs


class MessageBody(RunBody):
    message = MessageField()


class NewCommand(RunBody):
    type = Choice(choices=["send", "reply", "pause", "stop", "resume"])
    message = MessageField(
        "Message to send, reply or resume with. If the run waits for an answer, send and reply are the answer."
    )
    payload = MessageBody(required=False, help_text="May contain `message` instead.")
    key = Identifier(
        MAX_KEY,
        required=False,
        allow_null=True,
        default=None,
        help_text="Idempotency key of the command. A command with a repeated key has no further effect.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        payload = attrs.pop("payload", {})
        payload_message = payload.get("message")
        attrs[BODY_RUN_IDS] |= payload.get(BODY_RUN_IDS, set())
        if payload_message is not None and attrs["message"] is not None:
            raise ValidationError({"payload": "the message is already given outside of the payload"}, "repeated")
        attrs["message"] = attrs["message"] if payload_message is None else payload_message
        needs_message = attrs["type"] in ("send", "reply")
        if needs_message and attrs["message"] is None:
            raise ValidationError({"message": f"a {attrs['type']} needs a message"}, "required")
        if attrs["type"] in ("pause", "stop") and attrs["message"] is not None:
            raise ValidationError({"message": f"a {attrs['type']} has no message"}, "unknown_field")
        return attrs


class NewSignal(RunBody):
    name = LineField(
        min_length=1, max_length=inbox.MAX_SIGNAL, allow_blank=False, help_text="What the run's code waits for."
    )
    payload = serializers.JSONField(required=False, default=None, help_text="The value that the code gets.")
    key = Identifier(
        MAX_KEY,
        required=False,
        allow_null=True,
        default=None,
        help_text="Idempotency key of the signal. A signal with a repeated key has no further effect.",
    )
