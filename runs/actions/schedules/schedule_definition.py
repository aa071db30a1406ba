"""Schedule definitions and their validation, shared by pages, API and command line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentops.accounts.models import Project
from agentops.accounts.names import one_line
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.refusals import Refusal
from runs.actions import agent_definitions, flow_definitions
from runs.actions.schedules import periodic_tasks
from runs.actions.schedules.due_times import Cron, Interval, Timing
from runs.errors import InvalidSchedule
from runs.lifecycle import flow_creation, inbox
from runs.models import Schedule

MAX_NAME = 63
MAX_EXPRESSION = 200


class ScheduleDefinition(BaseModel):
    """A schedule of an agent or a flow. Its due times come from `cron` and `time_zone`, or from `every_s`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    agent: Annotated[str, Field(max_length=63)] = ""
    flow: Annotated[str, Field(max_length=63)] = ""
    prompt: Annotated[str, Field(max_length=inbox.MAX_MESSAGE)] = ""
    inputs: dict[str, Any] = {}
    cron: Annotated[str, Field(max_length=MAX_EXPRESSION)] = ""
    time_zone: Annotated[str, Field(max_length=63)] = "UTC"
    every_s: Annotated[int, Field(strict=True)] | None = None
    overlap: Schedule.Overlap = Schedule.Overlap.SKIP
    catch_up: Schedule.CatchUp = Schedule.CatchUp.NONE
    is_enabled: bool = True

    @field_validator("name")
    @classmethod
    def _one_line(cls, text: str) -> str:
        if text != one_line(text, len(text)):
            raise ValueError("a single line without control characters is expected")
        return text

    def timing(self, anchor: datetime) -> Timing:
        """Return the timing. Intervals are counted from `anchor`."""
        if self.every_s is not None:
            return Interval(self.every_s, anchor)
        return Cron(" ".join(self.cron.split()), self.time_zone)


def checked(project: Project, values: Mapping[str, Any], anchor: datetime) -> ScheduleDefinition:
    """Return the schedule described by `values`, for an agent or a flow of the project. Raises `InvalidSchedule`.

    Called outside of a transaction: the check of a flow's inputs may take seconds.
    """
    try:
        definition = ScheduleDefinition.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        raise InvalidSchedule(first["msg"].removeprefix("Value error, "), field) from None
    if (definition.every_s is None) == (not definition.cron.strip()):
        raise InvalidSchedule("either a cron expression or an interval is required, not both", "cron")
    periodic_tasks.check(definition.timing(anchor))
    definition = _masked(definition)
    _check_target(project, definition)
    return definition


def _masked(definition: ScheduleDefinition) -> ScheduleDefinition:
    """Return the schedule as stored: masked like a run. Its runs use these values, so these are checked."""
    return definition.model_copy(
        update={
            "name": REDACTOR.clean_text(definition.name)[0][:MAX_NAME],
            "prompt": MODEL_INPUT.clean_text(definition.prompt)[0] if definition.prompt.strip() else "",
            "inputs": REDACTOR.clean(definition.inputs)[0],
        }
    )


def _check_target(project: Project, definition: ScheduleDefinition) -> None:
    """Check that the project has the agent or flow, and that it can be started with the prompt or the inputs."""
    if bool(definition.agent) == bool(definition.flow):
        raise InvalidSchedule("either an agent or a flow is required, not both", "agent")
    field = "agent" if definition.agent else "flow"
    if definition.agent and definition.inputs:
        raise InvalidSchedule("an agent has a prompt, and no inputs", "inputs")
    if definition.flow and definition.prompt:
        raise InvalidSchedule("a flow has inputs, and no prompt", "prompt")
    try:
        if definition.agent:
            agent = agent_definitions.find(project, definition.agent)
            field = "prompt"
            if not definition.prompt.strip() and agent_definitions.recorded_prompt(agent) is None:
                raise InvalidSchedule("this agent requires a prompt", "prompt")
        else:
            flow = flow_definitions.find(project, definition.flow)
            field = "inputs"
            flow_creation.check_inputs(flow, definition.inputs)
    except InvalidSchedule:
        raise
    except Refusal as refusal:
        raise InvalidSchedule(str(refusal), field) from None
