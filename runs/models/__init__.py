"""The models of agents, runs, messages, tool calls and their records."""

from runs.models.ag_ui_run import AgUiRun
from runs.models.agent import Agent, AgentVersion
from runs.models.alerts import Alert, AlertDelivery, AlertFinding, AlertMessage, AlertMute, AlertRule
from runs.models.annotation_models import RunNote, SavedView, ShareLink
from runs.models.approval import Approval
from runs.models.checkpoint import Attempt, Checkpoint, RunError, TurnUsage
from runs.models.chore import Chore
from runs.models.claude_transcript import ClaudeTranscript, ClaudeTranscriptEntry
from runs.models.cli_session import CliSession
from runs.models.command import RunCommand
from runs.models.external_run import ExternalRun
from runs.models.file_import import FileImport, FileImportPiece, ImportState
from runs.models.flows import Flow, FlowRun, FlowVersion, FlowVisit
from runs.models.ingest_count import IngestCount
from runs.models.message import AgentRunMessage
from runs.models.otlp import OtlpGroup, OtlpItem
from runs.models.reported_call import ReportedCall
from runs.models.run import AgentRun
from runs.models.schedule import Schedule, ScheduleStart
from runs.models.search_entry import SearchEntry, SearchPosition
from runs.models.telemetry import Delivery, MetricCount, MetricPosition, Sink, SinkCursor
from runs.models.tool_call import AgentRunToolCall
from runs.models.worker_process import WorkerProcess

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
    "ImportState",
    "IngestCount",
    "MetricCount",
    "MetricPosition",
    "OtlpGroup",
    "OtlpItem",
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
