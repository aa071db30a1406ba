"""The interface of a sink kind: check options, turn events into requests, and send them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from agentops.base.refusals import Invalid
from timeline.models import Event

#: Maximum characters of a receiver's answer that are stored.
MAX_RESPONSE = 1000
#: An envelope: see runs.telemetry.envelope.
Envelope = dict[str, Any]
#: The name of an option, a secret or a field of a sink (empty for the whole sink), and the problem with it.
Problem = tuple[str, str]


class InvalidSink(Invalid):
    """The options of a sink are invalid, or the requested change is not allowed."""

    code = "invalid_sink"

    def __init__(self, text: str, field: str = "", *, others: Sequence[Problem] = ()) -> None:
        super().__init__(f"{field}: {text}" if field else text)
        #: All problems; the first is the text of the exception.
        self.problems: list[Problem] = [(field, text), *others]


def raise_all(checks: Iterable[Callable[[], object]]) -> None:
    """Run all checks, and raise one `InvalidSink` with the problems of all failed checks."""
    problems: list[Problem] = []
    for check in checks:
        try:
            check()
        except InvalidSink as error:
            problems += error.problems
    if problems:
        (field_name, text), *others = problems
        raise InvalidSink(text, field_name, others=others)


class SendFailed(Exception):
    """The receiver did not accept a request. The text names the reason and contains no secret."""

    def __init__(
        self,
        reason: str,
        *,
        is_final: bool = False,
        disables: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
        response: str = "",
    ) -> None:
        super().__init__(reason)
        #: Whether repeating the request is useless.
        self.is_final = is_final
        #: Whether no request will be accepted until the sink is changed.
        self.disables = disables
        #: Seconds that the receiver asks to wait.
        self.retry_after_s = retry_after_s
        self.status = status
        self.response = response[:MAX_RESPONSE]


@dataclass(frozen=True)
class SinkTarget:
    """A sink as the exporter uses it: its options and its secrets in plain text."""

    sink_id: UUID
    name: str
    options: Any
    secrets: Mapping[str, Any] = field(repr=False)
    #: Null for a sink of the whole site.
    project_id: UUID | None = None
    #: The event types that the sink selects. Empty: the types of its kind.
    event_types: Collection[str] = ()


@dataclass(frozen=True)
class OutgoingEvent:
    """An event to send: the row, with masked secrets, and its envelope."""

    row: Event
    id: str
    envelope: Envelope
    #: The flow run of the log, or the flow run whose node the run executes.
    flow_run_id: UUID | None = None

    @property
    def is_of_flow_run(self) -> bool:
        """Whether the log belongs to a flow run instead of an agent's run."""
        return self.flow_run_id is not None and self.flow_run_id == self.row.log_id


@dataclass(frozen=True)
class Receipt:
    """The answer of a receiver that has accepted a request."""

    status: int | None = None
    response: str = ""
    #: Parts that the receiver permanently refused, as text. The others are accepted.
    refused: Sequence[str] = ()


class SinkOptions(BaseModel):
    """The options of a kind. Unknown options are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SinkKind:
    """A kind of sink. Subclasses in other packages only need to implement `send`.

    One object serves all sinks of the kind and all threads, so it must keep no state between calls.
    """

    name: ClassVar[str]
    #: One sentence for lists.
    title: ClassVar[str] = ""
    options_class: ClassVar[type[SinkOptions]] = SinkOptions
    #: Names of secrets, which are stored encrypted and never shown. True: required.
    secret_names: ClassVar[Mapping[str, bool]] = {}
    #: Whether each event is a separate delivery with separate attempts. Otherwise events are sent in order, in batches,
    #: and a refused batch blocks the following ones.
    sends_each: ClassVar[bool] = False
    #: Maximum number of events of a batch.
    batch_size: ClassVar[int] = 100
    #: The event types to read, regardless of the sink's selection. Empty: the selected types.
    needed_types: ClassVar[Collection[str]] = ()
    #: The default selection of a sink that names no types. Empty: all types except pieces of streamed text.
    default_types: ClassVar[Collection[str]] = ()

    def check(self, options: Mapping[str, Any]) -> Any:
        """Return the validated options. Raises `InvalidSink`."""
        try:
            return self.options_class.model_validate(options)
        except ValidationError as error:
            first, *others = [
                (".".join(map(str, each["loc"])) or "options", each["msg"])
                for each in error.errors(include_url=False, include_input=False)
            ]
            raise InvalidSink(first[1], first[0], others=others) from None

    def check_secrets(self, secrets: Mapping[str, Any]) -> None:
        """Check the types and sizes of secrets, which are texts by default. Raises `InvalidSink`."""
        for name, value in secrets.items():
            if not isinstance(value, str) or not 1 <= len(value) <= 4096 or not value.isprintable():
                raise InvalidSink("a text of 1 to 4096 printable characters is expected", name)

    def types_of(self, options: Mapping[str, Any], selected: Collection[str]) -> Collection[str]:
        """Return the event types to read for a sink with these options and this selection. Empty: all except chunks."""
        return self.needed_types or selected or self.default_types

    def size_of_batch(self, target: SinkTarget) -> int:
        """Return the maximum number of events of a batch."""
        return self.batch_size

    def render(self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Sequence[Any]:
        """Return the requests for these events. It may read the database, but sends nothing.

        `message_id` is the same whenever these events are sent again.
        """
        return [event.envelope for event in events]

    def send(self, target: SinkTarget, requests: Sequence[Any]) -> Receipt:
        """Send the requests outside of any transaction. It should take seconds at most. Raises `SendFailed`."""
        raise NotImplementedError

    def test_events(self, target: SinkTarget, event: OutgoingEvent) -> Sequence[OutgoingEvent]:
        """Return the events of a test: usually one event of the type `test`."""
        return [event]
