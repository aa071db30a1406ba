"""The interface of a sink kind: it checks options, turns events into requests, and sends them.

Also the functions that kinds share: JSON, batches, headers, and POST requests by the guarded client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar
from uuid import UUID

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from agentops.base.http import receivers
from agentops.base.http.guarded_client import HttpAnswer
from agentops.base.http.receivers import DISABLING, FINAL, PostFailed, refusal_of
from agentops.base.refusals import Invalid
from timeline.models import Event

T = TypeVar("T")
#: Maximum characters of a receiver's response that are stored.
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
    #: None for a sink of the whole site.
    project_id: UUID | None = None
    #: The event types that the sink selects. Empty: the types of its kind.
    event_types: Collection[str] = ()


@dataclass(frozen=True)
class OutgoingEvent:
    """An event to send: its row with masked secrets, its ID for receivers, and its envelope."""

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
    #: Whether each secret is required, by its name. Secrets are stored encrypted and never shown.
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
        """Return the event types to read for a sink with these options and this selection.

        Empty: all types except pieces of streamed text.
        """
        return self.needed_types or selected or self.default_types

    def size_of_batch(self, target: SinkTarget) -> int:
        """Return the maximum number of events of a batch."""
        return self.batch_size

    def render(self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Sequence[Any]:
        """Return the requests for these events, without sending them. The implementation may read the database.

        `message_id` is the same whenever these events are sent again.
        """
        return [event.envelope for event in events]

    def send(self, target: SinkTarget, requests: Sequence[Any]) -> Receipt:
        """Send the requests. Called outside of any transaction; should take seconds at most. Raises `SendFailed`."""
        raise NotImplementedError

    def test_events(self, target: SinkTarget, event: OutgoingEvent) -> Sequence[OutgoingEvent]:
        """Return the events of a test: usually one event of the type `test`."""
        return [event]


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, which imports and arguments of calls may contain
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def in_batches(
    items: Iterable[T], max_size: int, size_of: Callable[[T], int], *, max_items: int | None = None
) -> Iterator[list[T]]:
    """Divide items, in order, into batches of limited total size and number. A larger item has a separate batch."""
    batch: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (total + size > max_size or len(batch) == max_items):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


#: ASCII characters that the name of a header must not contain.
_NOT_IN_NAMES = frozenset('()<>@,;:\\"/[]?={} \t')


def _checked_url(url: str) -> str:
    """Return the URL. Raises `PydanticCustomError` if the guarded client refuses it; DNS is not queried."""
    if reason := refusal_of(url):
        raise PydanticCustomError("url_not_allowed", "{reason}", {"reason": reason})
    return url


#: The type of an option that is a URL.
SinkUrl = Annotated[str, AfterValidator(_checked_url)]


def check_headers(headers: object) -> None:
    """Check the headers that the operator adds to requests. Raises `InvalidSink`."""
    if not isinstance(headers, Mapping) or len(headers) > 20:
        raise InvalidSink("an object with at most 20 names and values is expected", "headers")
    for name, value in headers.items():
        is_name = name.isascii() and name.isprintable() and name and _NOT_IN_NAMES.isdisjoint(name)
        if not is_name or not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise InvalidSink(f"{name[:64]!r} is not a valid header", "headers")
        if name.lower() in {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}:
            raise InvalidSink(f"{name[:64]!r} is set by the sender", "headers")


def post(url: str, content: bytes, headers: Mapping[str, str]) -> HttpAnswer:
    """Send a POST request, and return the response if its status is a success. Raises `SendFailed`."""
    try:
        return receivers.post(url, content, headers)
    except PostFailed as failure:
        answer = failure.answer
        raise SendFailed(
            str(failure),
            is_final=failure.status in FINAL,
            disables=failure.status in DISABLING,
            retry_after_s=failure.retry_after_s,
            status=failure.status,
            response="" if answer is None else _beginning(answer),
        ) from None


def receipt_of(answer: HttpAnswer) -> Receipt:
    """Return an accepted answer as a receipt."""
    return Receipt(answer.status, _beginning(answer))


def _beginning(answer: HttpAnswer) -> str:
    return answer.body[: MAX_RESPONSE * 4].decode(errors="replace")[:MAX_RESPONSE]
