"""Refusals about runs that are caught by type or raised in several places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from agentops.base.refusals import Conflict, Invalid, NotFound, Refusal


class RunNotFound(NotFound):
    """The run does not exist, or the caller may not see its project. Both cases look the same."""

    code = "run_not_found"


class RunExpired(Refusal):
    """The run was deleted by retention. `data["tombstone"]` describes it."""

    code = "run_expired"
    status = 410


class ImportFinished(Conflict):
    """The import has ended, so it cannot be cancelled."""

    code = "import_finished"


class FlowNotFound(NotFound):
    """The project has no flow of this name."""

    code = "flow_not_found"


class FlowRunNotFound(NotFound):
    """The flow run does not exist, or the caller may not see its project. Both cases look the same."""

    code = "flow_run_not_found"


class MoveRefused(Conflict):
    """The status changed concurrently, or the transition is not allowed."""

    code = "move_refused"


class InvalidFlow(Invalid):
    """The definition of a flow is invalid. `data["problems"]` lists everything that is wrong."""

    code = "flow_invalid"


class InvalidFlowInputs(Invalid):
    """The inputs of a flow run do not match the flow's schema."""

    code = "invalid_inputs"


class InvalidSettings(Invalid):
    """A schedule or an alert rule is invalid. `field` is the invalid form field; empty for the whole form."""

    #: Form field → its name in the API, if that differs.
    _API_NAMES: ClassVar[Mapping[str, str]] = {"agent": "agent_id", "flow": "flow_id"}

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text, pointer=f"/{self._API_NAMES.get(field, field)}" if field else "")
        self.field = field


class InvalidSchedule(InvalidSettings):
    """A schedule is invalid."""

    code = "invalid_schedule"


class InvalidAlertRule(InvalidSettings):
    """An alert rule is invalid."""

    code = "invalid_alert_rule"


class InvalidAnnotation(Invalid):
    """A label, note, view or link is invalid."""

    code = "invalid_annotation"


class InvalidMaxSteps(Invalid):
    """The step limit is not valid."""

    code = "invalid_max_steps"


class MessageEmpty(Invalid):
    """The message is empty."""

    code = "message_empty"


class InvalidAgent(Invalid):
    """The definition of an agent is invalid, for example because of an unknown provider, model or tool."""

    code = "invalid_agent"


class InvalidPolicies(InvalidAgent):
    """The policies of an agent's definition are invalid."""

    code = "invalid_policy"
