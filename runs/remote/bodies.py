"""The operations that a process sends about a run, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from agentops.base.http import strict_json
from agentops.base.refusals import Invalid
from runs.agents.definition import pointer_of
from runs.remote.values import MAX_PIECES
from timeline.events.base import CUSTOM_TYPE, MAX_TYPE_LENGTH, EventType
from timeline.events.work import Handoff

#: The limits of a body as JSON. It contains values of steps, which may be as large as the body.
LIMITS = replace(strict_json.FILE, lone_surrogates=True)
#: Maximum number of operations in one request.
MAX_OPERATIONS = 100
#: Maximum number of runs in one request.
MAX_RUNS = 100

#: The largest epoch that a column holds.
MAX_EPOCH = 2**31 - 1


def _storable(text: str) -> str:
    """Return a text that columns accept. Raises `ValueError` if it contains NUL or unpaired surrogates."""
    if "\0" in text:
        raise ValueError("the text contains NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text contains an unpaired surrogate") from None
    return text


#: A text that is stored unchanged, such as a name. Texts of people and programs are cleaned instead.
Stored = Annotated[str, AfterValidator(_storable)]
Key = Annotated[Stored, Field(min_length=1, max_length=200)]
Name = Annotated[Stored, Field(min_length=1, max_length=200)]
RunId = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
Epoch = Annotated[int, Field(ge=1, le=MAX_EPOCH)]
#: Chosen by the process, so that a repeated operation has no further effect.
OperationId = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-zA-Z_.-]*$")]
Count = Annotated[int, Field(ge=0, le=2**53)]
Milliseconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Field(gt=0, le=366 * 86_400)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StepError(_Body):
    """The error of an attempt or a step."""

    type: Annotated[str, Field(min_length=1, max_length=64)]
    message: Annotated[str, Field(max_length=10_000)] = ""
    details: Annotated[str, Field(max_length=20_000)] = ""


class AnsweredCall(_Body):
    """A tool call that a model requests."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: dict[str, Any] | str = {}
    effect: Literal["read", "idempotent", "once"] = "once"
    needs_approval: bool = False


class Usage(_Body):
    """The tokens of a model call. `input_tokens` include the cached ones."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cache_write_1h_tokens: Count = 0
    reasoning_tokens: Count = 0


class ModelAnswer(_Body):
    """The answer of a model."""

    text: str = ""
    thinking: str = ""
    calls: Annotated[list[AnsweredCall], Field(max_length=1024)] = []
    model: Annotated[str, Field(max_length=200)] = ""
    provider: Annotated[str, Field(max_length=63)] = ""
    usage: Usage = Usage()
    #: US dollars, if the provider reports them.
    cost_usd: Annotated[Decimal, Field(ge=0, lt=1_000_000)] | None = None
    finish_reason: Literal["stop", "length", "content_filter", "tool_call", "error"] | None = None
    tier: Annotated[str, Field(max_length=63)] = ""


class StartStep(_Body):
    """Start a step, or get its outcome."""

    op: Literal["start"]
    key: Key
    kind: Literal["step", "model", "tool", "approval", "question", "sleep", "signal", "child"]
    name: Name
    effect: Literal["read", "idempotent", "once"] = "once"
    input: Any = None
    needs_approval: bool = False
    #: False: the process works on other steps of the run, so a start that would release it is not carried out.
    may_release: bool = True
    #: The ID of the model's call that a step of the kind `tool` executes; by default, the key without `call:`.
    call_id: Annotated[str, Field(max_length=256)] = ""
    # Of single kinds
    model: Annotated[str, Field(max_length=200)] = ""
    expires_s: Seconds | None = None
    question: Annotated[str, Field(max_length=10_000)] = ""
    choices: Annotated[list[Annotated[str, Field(max_length=1_000)]], Field(max_length=100)] = []
    seconds: Seconds | None = None
    signal: Annotated[str, Field(max_length=200)] = ""
    timeout_s: Seconds | None = None
    agent: Annotated[str, Field(max_length=63)] = ""
    prompt: Annotated[str, Field(max_length=200_000)] = ""


class FinishStep(_Body):
    """Store the value of a started step."""

    op: Literal["finish"]
    key: Key
    value: Any = None
    codec: Annotated[Stored, Field(max_length=63)] = ""
    pieces: Annotated[int, Field(ge=1, le=MAX_PIECES)] | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] = ""
    shown: str | None = None
    duration_ms: Milliseconds | None = None
    answer: ModelAnswer | None = None


class SendPiece(_Body):
    """Store a piece of a value that is too large for one request."""

    op: Literal["piece"]
    key: Key
    index: Annotated[int, Field(ge=0, lt=MAX_PIECES)]
    data: str


class FailStep(_Body):
    """Store that an attempt failed; if `final`, as the outcome of the step."""

    op: Literal["fail"]
    key: Key
    #: As of a start. A call that was not started is not executed any more.
    call_id: Annotated[str, Field(max_length=256)] = ""
    #: Of an attempt that is not the last one.
    id: OperationId = ""
    error: StepError
    final: bool
    retry_in_s: Annotated[float, Field(ge=0, le=86_400)] | None = None
    duration_ms: Milliseconds | None = None


class AddText(_Body):
    """Show a piece of text that a started step streams."""

    op: Literal["text"]
    key: Key
    id: OperationId = ""
    text: Annotated[str, Field(max_length=64 * 1024)]


class LogEvent(_Body):
    """Append an event of the process's own type, or a handoff from one agent of the process to another."""

    op: Literal["log"]
    id: OperationId = ""
    type: Annotated[str, Field(pattern=f"{CUSTOM_TYPE}|^{EventType.HANDOFF}$", max_length=MAX_TYPE_LENGTH)]
    payload: dict[str, Any] = {}

    @model_validator(mode="after")
    def check_payload(self) -> Self:
        """Refuse a handoff with members that its event does not have."""
        if self.type == EventType.HANDOFF:
            Handoff.model_validate(self.payload)
        return self


class ReceiveMessages(_Body):
    """Take the pending messages of people into the conversation."""

    op: Literal["receive"]
    key: Key
    #: As for a start.
    may_release: bool = True


class GraphFacts(_Body):
    """What the site knows about a value of a graph: of a checkpoint, or of a write."""

    parent: Annotated[Stored, Field(max_length=64)] | None = None
    metadata: dict[str, Any] = {}
    channels: list[Stored] = []
    deltas: list[Stored] = []
    task: Stored = ""
    index: int = 0
    channel: Stored = ""
    path: Stored = ""
    of: Annotated[int, Field(ge=0)] = 0
    length: Annotated[int, Field(ge=0)] = 0


class GraphValueBody(_Body):
    """A value of a graph that the process executes."""

    kind: Literal["checkpoint", "channel", "write"]
    namespace: Annotated[Stored, Field(max_length=300)] = ""
    checkpoint: Annotated[Stored, Field(max_length=64)] = ""
    key: Annotated[Stored, Field(max_length=300)] = ""
    index: Annotated[int, Field(ge=0, lt=MAX_PIECES)] = 0
    facts: GraphFacts = GraphFacts()
    text: str
    keeps: bool = False


GraphValues = Annotated[list[GraphValueBody], Field(min_length=1, max_length=MAX_OPERATIONS)]


class PutValues(_Body):
    """Store values of a graph."""

    op: Literal["put"]
    values: GraphValues


Operation = Annotated[
    StartStep | FinishStep | SendPiece | FailStep | AddText | LogEvent | ReceiveMessages | PutValues,
    Field(discriminator="op"),
]


class StepsBody(_Body):
    """The body of `POST /api/work/runs/{run}/steps`."""

    epoch: Epoch
    ops: Annotated[list[Operation], Field(min_length=1, max_length=MAX_OPERATIONS)]


class RunOperations(StepsBody):
    """The operations of one run."""

    id: RunId


class BatchBody(_Body):
    """The body of `POST /api/work/steps`."""

    runs: Annotated[list[RunOperations], Field(min_length=1, max_length=MAX_RUNS)]


class ReleaseBody(_Body):
    """The body of `POST /api/work/runs/{run}/release`."""

    epoch: Epoch
    to: Literal["completed", "failed", "paused", "stopped", "queued"]
    result: Any = None
    summary: Annotated[str, Field(max_length=10_000)] = ""
    structured_output: Any = None
    error: StepError | None = None
    reason: Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9_]*$")] = ""
    ignores_messages: bool = True


class OfferedAgent(_Body):
    """An agent that a process can execute."""

    name: Annotated[Stored, Field(min_length=1, max_length=63)]
    version: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1
    description: Annotated[Stored, Field(max_length=10_000)] | None = None
    model: Annotated[Stored, Field(min_length=1, max_length=200)] | None = None
    queue: Annotated[Stored, Field(max_length=63)] | None = None
    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    settings: dict[str, Any] | None = None


class RegisterBody(_Body):
    """The body of `POST /api/work/agents`."""

    agents: Annotated[list[OfferedAgent], Field(min_length=1, max_length=100)]


ThreadName = Annotated[Stored, Field(min_length=1, max_length=200)]


class PutInThread(_Body):
    """Store values of a thread; of a run, in a new fork of it."""

    op: Literal["put"]
    thread: ThreadName
    values: GraphValues
    parent: Annotated[Stored, Field(max_length=64)] = ""
    #: Chosen by the process for the new state of a run. All its operations and their repetitions name the same fork.
    fork: RunId | None = None
    #: False: further operations about the fork follow. Only the last one queues it.
    completes: bool = True


class DeleteThread(_Body):
    """Delete a thread."""

    op: Literal["delete"]
    thread: ThreadName


class CopyThread(_Body):
    """Copy the values of a thread to another one."""

    op: Literal["copy"]
    thread: ThreadName
    to: ThreadName


class PruneThread(_Body):
    """Delete the checkpoints of a thread except for the newest of each namespace."""

    op: Literal["prune"]
    thread: ThreadName


class DeleteCheckpoints(_Body):
    """Delete the checkpoints of all threads whose metadata name one of these executions."""

    op: Literal["delete_runs"]
    run_ids: Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=1000)]


ThreadOperation = Annotated[
    PutInThread | DeleteThread | CopyThread | PruneThread | DeleteCheckpoints, Field(discriminator="op")
]


class ThreadsBody(_Body):
    """The body of `POST /api/work/threads`."""

    ops: Annotated[list[ThreadOperation], Field(min_length=1, max_length=MAX_OPERATIONS)]


BodyT = TypeVar("BodyT", bound=BaseModel)
Versions = Annotated[list[Annotated[int, Field(ge=1, le=1_000_000_000)]], Field(min_length=1, max_length=100)]


class ClaimBody(_Body):
    """The body of `POST /api/work/claim`."""

    worker: Annotated[Stored, Field(min_length=1, max_length=120)]
    agents: Annotated[dict[Annotated[Stored, Field(max_length=63)], Versions], Field(min_length=1, max_length=100)]
    queues: Annotated[list[Annotated[Stored, Field(min_length=1, max_length=63)]], Field(min_length=1, max_length=100)]


class HeldRunBody(_Body):
    """A run that a process holds."""

    id: RunId
    epoch: Epoch


class HeartbeatBody(ClaimBody):
    """The body of `POST /api/work/heartbeat`."""

    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 1
    runs: Annotated[list[HeldRunBody], Field(max_length=10_000)] = []


def parsed(body: type[BodyT], document: Mapping[str, Any]) -> BodyT:
    """Return a validated body. Raises `Invalid` with the pointer of the first fault."""
    try:
        return TypeAdapter(body).validate_python(document)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise Invalid(fault["msg"], code="invalid_body", pointer=pointer_of(fault["loc"])) from None
