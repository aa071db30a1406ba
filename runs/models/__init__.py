"""The models of agents, runs, messages, tool calls and their records."""

from runs.models.agent import Agent, AgentVersion
from runs.models.alerts import Alert, AlertDelivery, AlertFinding, AlertMessage, AlertMute, AlertRule
from runs.models.annotation_models import RunNote, SavedView, ShareLink
from runs.models.checkpoint import Attempt, Checkpoint, RunError, TurnUsage
from runs.models.conversation import AgentRunMessage, AgentRunToolCall, Approval, RunCommand
from runs.models.external import AgUiRun, ExternalRun, IngestCount, OtlpGroup, OtlpItem, ReportedCall
from runs.models.file_import import FileImport, FileImportPiece, ImportState
from runs.models.flows import Flow, FlowRun, FlowVersion, FlowVisit
from runs.models.graph_states import GraphThread, GraphValue
from runs.models.remote_steps import RemoteStep, RemoteStepPiece
from runs.models.run import AgentRun
from runs.models.schedule import Schedule, ScheduleStart
from runs.models.search_entry import SearchEntry, SearchPosition
from runs.models.sessions import ClaudeTranscript, ClaudeTranscriptEntry, CliSession
from runs.models.telemetry import Delivery, MetricCount, MetricPosition, Sink, SinkCursor
from runs.models.workers import Chore, WorkerProcess

__all__ = [
    "AgUiRun",
    "Agent",
    "AgentRun",
    "AgentRunMessage",
    "AgentRunToolCall",
    "AgentVersion",
    "Alert",
    "AlertDelivery",
    "AlertFinding",
    "AlertMessage",
    "AlertMute",
    "AlertRule",
    "Approval",
    "Attempt",
    "Checkpoint",
    "Chore",
    "ClaudeTranscript",
    "ClaudeTranscriptEntry",
    "CliSession",
    "Delivery",
    "ExternalRun",
    "FileImport",
    "FileImportPiece",
    "Flow",
    "FlowRun",
    "FlowVersion",
    "FlowVisit",
    "GraphThread",
    "GraphValue",
    "ImportState",
    "IngestCount",
    "MetricCount",
    "MetricPosition",
    "OtlpGroup",
    "OtlpItem",
    "RemoteStep",
    "RemoteStepPiece",
    "ReportedCall",
    "RunCommand",
    "RunError",
    "RunNote",
    "SavedView",
    "Schedule",
    "ScheduleStart",
    "SearchEntry",
    "SearchPosition",
    "ShareLink",
    "Sink",
    "SinkCursor",
    "TurnUsage",
    "WorkerProcess",
]
