"""The errors of runs, each with a machine-readable code and an HTTP status."""

from __future__ import annotations

from typing import Any

from agentops.base.limits import schema_checks


class RunRefusal(Exception):
    """The base class of errors that are reported to the caller. `data` holds further fields of the response."""

    code = "run_error"
    status = 409

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.data = data


class RunNotFound(RunRefusal):
    """The run does not exist, or the caller may not see its project. Both cases look the same."""

    code = "run_not_found"
    status = 404


class RunExpired(RunRefusal):
    """The run was deleted by retention. `data["tombstone"]` describes it."""

    code = "run_expired"
    status = 410


class ImportNotFound(RunRefusal):
    """The import does not exist, or the caller may not see it. Both cases look the same."""

    code = "import_not_found"
    status = 404


class ImportFinished(RunRefusal):
    """The import has ended, so it cannot be cancelled."""

    code = "import_finished"


class FlowNotFound(RunRefusal):
    """The project has no flow of this name."""

    code = "flow_not_found"
    status = 404


class FlowRunNotFound(RunRefusal):
    """The flow run does not exist, or the caller may not see its project. Both cases look the same."""

    code = "flow_run_not_found"
    status = 404


class FlowRunNotPaused(RunRefusal):
    """The flow run is not paused, so it cannot be resumed."""

    code = "flow_run_not_paused"


class SnapshotUnusable(RunRefusal):
    """The stored snapshot of the flow run does not fit its definition."""

    code = "snapshot_unusable"


class RunNotPaused(RunRefusal):
    """The run is not paused, so it cannot be resumed."""

    code = "run_not_paused"


class MaxTotalStepsExceeded(RunRefusal):
    """The lineage has reached AGENTOPS_MAX_TOTAL_STEPS."""

    code = "max_total_steps_exceeded"


class RunTerminal(RunRefusal):
    """The run has ended and accepts no commands."""

    code = "run_terminal"


class RunIsExternal(RunRefusal):
    """Another program executes the run, so it cannot be controlled here."""

    code = "run_is_external"


class ExternalIdTaken(RunRefusal):
    """The project has another run with the same external ID."""

    code = "external_id_conflict"


class CommandKeyTaken(RunRefusal):
    """The run has a different command with the same idempotency key."""

    code = "command_key_conflict"


class MoveRefused(RunRefusal):
    """The status changed concurrently, or the transition is not allowed."""

    code = "move_refused"


class CallNotUnknown(RunRefusal):
    """The outcome of the tool call is not unknown, or no longer needs to be resolved."""

    code = "call_not_unknown"


class ApprovalDecided(RunRefusal):
    """The approval was decided before, expired, or ended with its run. `data` says how and by whom."""

    code = "approval_decided"


class ApprovalNotRequested(RunRefusal):
    """The tool call has never waited for an approval."""

    code = "approval_not_requested"


class ToolCallNotFound(RunRefusal):
    """The run has no such tool call."""

    code = "tool_call_not_found"
    status = 404


class LeaseTaken(RunRefusal):
    """Another worker holds the lease of the run."""

    code = "lease_taken"


class InvalidInput(RunRefusal):
    """A field is invalid. `data["pointer"]` is its JSON pointer."""

    code = "invalid_input"
    status = 422


class InvalidFlow(InvalidInput):
    """The definition of a flow is invalid. `data["problems"]` lists everything that is wrong."""

    code = "flow_invalid"


class InvalidFlowInputs(InvalidInput):
    """The inputs of a flow run do not match the flow's schema."""

    code = "invalid_inputs"


class FlowInputsTooExpensive(InvalidFlowInputs):
    """Checking the inputs against the flow's schema exceeds the work that one check may do."""

    code = schema_checks.TOO_EXPENSIVE


class UnknownField(InvalidInput):
    """An object has an unknown field."""

    code = "unknown_field"


class RunIdRequired(InvalidInput):
    """A command to a flow run does not name the run that should receive it."""

    code = "run_id_required"


class NotARunOfTheFlow(InvalidInput):
    """A command names a run that is not an open run of this flow run."""

    code = "run_not_in_flow"


class InvalidMaxSteps(InvalidInput):
    """The step limit is not valid."""

    code = "invalid_max_steps"


class MessageEmpty(InvalidInput):
    """The message is empty."""

    code = "message_empty"


class NoCheckpoint(InvalidInput):
    """The run has no checkpoint at this step, so it cannot be forked there."""

    code = "no_checkpoint"


class InvalidParent(InvalidInput):
    """The parent run does not exist, or may not have further children."""

    code = "invalid_parent"


class TooDeep(InvalidParent):
    """The nesting of child runs exceeds the limit."""

    code = "max_depth_exceeded"


class TooManyChildren(InvalidParent):
    """The parent run has the maximum number of children."""

    code = "max_children_exceeded"


class InvalidAgent(InvalidInput):
    """The definition of an agent is invalid, for example because of an unknown provider, model or tool."""

    code = "invalid_agent"


class AgentSchemaTooExpensive(InvalidAgent):
    """Checking the agent's output schema exceeds the work that one check may do."""

    code = schema_checks.TOO_EXPENSIVE


class FrontEndToolsUnsupported(InvalidInput):
    """The agent cannot call tools of a front end."""

    code = "frontend_tools_unsupported"


class InvalidPolicies(InvalidAgent):
    """The policies of an agent's definition are invalid."""

    code = "invalid_policy"
