"""The form of a sink: fields for the options and secrets of its kind, and the submitted values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import orjson
from django.http import QueryDict

from agentops.base.http import strict_json
from agentops.base.redaction.masked_secrets import MaskedSecrets, masked
from runs.models import Sink
from runs.pages.forms import fields
from runs.telemetry.kind_catalogue import WEBHOOK
from runs.telemetry.sink_changes import SinkChange
from runs.telemetry.sink_kind import Problem, SinkKind

REQUIRED = "Enter a value."
#: Option or secret → label and help. Options of other packages are labelled with their names.
TEXTS = {
    "url": ("URL", "An https address of a public host, unless the site allows private ones."),
    "batch_size": (
        "Events in a request",
        "From 1 to 500; 100 if empty. With 1 the body is one envelope, else an array.",
    ),
    "dialect": ("Names of events", "hooks (such as pre_tool_use; the default), or log for all events of the log."),
    "directory": ("Directory", "An absolute path that the site allows. Empty: the folder telemetry of the site."),
    "base_url": ("Server", "Empty: https://cloud.langfuse.com."),
    "public_key": ("Public key", "Begins with pk-lf-."),
    "secret_key": ("Secret key", "Begins with sk-lf-."),
    "headers": ("Headers", "One NAME: VALUE a line, such as Authorization: Bearer …. Sent with each request."),
    "secrets": ("Secret", "whsec_ and the base64 form of 24 to 64 bytes. Empty: a new one, which is shown once."),
}
#: Kind → texts of options that differ for this kind.
KIND_TEXTS = {("otlp", "url"): ("URL", "Of the traces, such as https://collector.example.org/v1/traces.")}


@dataclass
class SinkField:
    """A field of the form, with its value."""

    name: str
    label: str
    help: str = ""
    is_required: bool = False
    is_secret: bool = False
    #: Whether the field has several lines.
    is_long: bool = False
    #: Converts the text to a value. Raises `ValueError` with the reason.
    parse: Callable[[str], Any] = str
    value: str = ""
    #: Whether a secret was entered that is not sent back when another field has an error.
    is_dropped: bool = False
    #: For a stored secret, its last characters. An empty field keeps the stored secret.
    hint: str = ""
    errors: list[str] = field(default_factory=list)

    @property
    def may_hold_secret(self) -> bool:
        """Return whether the browser must not store the input. URLs may contain tokens."""
        return self.is_secret or self.name.endswith("url")

    @property
    def may_forget(self) -> bool:
        """Return whether the stored secret can be removed."""
        return bool(self.hint) and not self.is_required


@dataclass
class SinkForm:
    """The form of a new or stored sink."""

    kind: SinkKind
    sink: Sink | None
    name: SinkField
    options: list[SinkField]
    secrets: list[SinkField]
    event_types: SinkField
    from_start: bool = False
    #: Problems that belong to no field.
    errors: list[str] = field(default_factory=list)

    @property
    def fields(self) -> list[SinkField]:
        return [self.name, *self.options, *self.secrets, self.event_types]

    @property
    def error_count(self) -> int:
        return len(self.errors) + sum(len(each.errors) for each in self.fields)

    def add_problems(self, problems: Sequence[Problem]) -> None:
        """Add each problem to its field. Skips a problem that the field already reports."""
        by_name = {each.name: each for each in self.fields}
        for name, text in problems:
            place = by_name.get(name)
            if place is None:
                self.errors.append(f"{name}: {text}." if name else f"{text[:1].upper()}{text[1:]}.")
            elif not place.errors:
                place.errors.append(f"{text[:1].upper()}{text[1:]}.")


def form_of(kind: SinkKind, sink: Sink | None = None) -> SinkForm:
    """Return the form of a new sink of a kind, or of a stored sink. Stored secrets are not included."""
    stored = masked(sink.config) if sink is not None else {}
    hints = sink.secret_hints if sink is not None else {}
    options = [_option(kind, name, stored.get(name)) for name in kind.options_class.model_fields]
    # The secrets of a webhook are rotated instead.
    is_rotated = kind.name == WEBHOOK and sink is not None
    secrets = [] if is_rotated else [_secret(kind, name, hints.get(name)) for name in kind.secret_names]
    types = SinkField("event_types", "Event types", is_long=True, value="\n".join(sink.event_types) if sink else "")
    name = SinkField("name", "Name", "Lower-case letters, digits, - and _.", is_required=True)
    name.value = sink.name if sink is not None else ""
    return SinkForm(kind, sink, name, options, secrets, types)


def read(form: SinkForm, post: QueryDict) -> SinkChange:
    """Fill the form with the submitted values, and return the change. The form contains the errors of single fields."""
    form.name.value = fields.line(post.get("name", ""))
    if not form.name.value:
        form.name.errors.append(REQUIRED)
    form.event_types.value = fields.text(post.get("event_types", ""))
    form.from_start = post.get("from_start") == "yes"
    restored = MaskedSecrets(form.sink.config) if form.sink is not None else MaskedSecrets()
    return SinkChange(
        name=form.name.value,
        config=restored.restore(_values(form.options, post)),
        secrets=_secret_values(form, post),
        event_types=form.event_types.value.replace(",", " ").split(),
    )


def _values(options: Sequence[SinkField], post: Mapping[str, str]) -> dict[str, Any]:
    """Return the submitted options. Empty options use the kind's defaults."""
    values = {}
    for each in options:
        each.value = fields.line(post.get(each.name, ""))
        if not each.value:
            each.errors += [REQUIRED] * each.is_required
            continue
        values[each.name] = each.parse(each.value)
    return values


def _secret_values(form: SinkForm, post: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the secrets that were entered or are to be removed. They are not put into the form again."""
    values: dict[str, Any] = {}
    for each in form.secrets:
        text = fields.text(post.get(each.name, "")).strip()
        if not text:
            each.errors += [REQUIRED] * (each.is_required and not each.hint)
            if each.may_forget and post.get(f"{each.name}-forget") == "yes":
                values[each.name] = {}
            continue
        each.is_dropped = True
        try:
            values[each.name] = each.parse(text)
        except ValueError as error:
            each.errors.append(f"{error}.")
    return values if values or form.sink is None else None


def _option(kind: SinkKind, name: str, stored: Any) -> SinkField:
    info = kind.options_class.model_fields[name]
    label, help_text = KIND_TEXTS.get((kind.name, name)) or TEXTS.get(name) or (name, info.description or "")
    parse: Callable[[str], Any] = str if str in (info.annotation, *get_args(info.annotation)) else _json
    text = stored if isinstance(stored, str) else "" if stored is None else orjson.dumps(stored).decode()
    return SinkField(name, label, help_text, is_required=info.is_required(), parse=parse, value=text)


def _secret(kind: SinkKind, name: str, hint: Any) -> SinkField:
    label, help_text = TEXTS.get(name, (name, ""))
    # A webhook without a secret gets one.
    is_required = kind.secret_names[name] and kind.name != WEBHOOK
    parse = {"headers": _headers, "secrets": lambda text: [text]}.get(name, str)
    made = SinkField(name, label, help_text, is_required=is_required, is_secret=True, parse=parse)
    made.is_long = name == "headers"
    made.hint = _hint(hint)
    return made


def _hint(hint: Any) -> str:
    if isinstance(hint, Mapping):
        return ", ".join(f"{name}: {each}" for name, each in hint.items())
    return "" if hint is None else str(hint)


def _json(text: str) -> Any:
    """Return the value of a JSON text. Text that is not JSON is returned unchanged, as on the command line."""
    try:
        return strict_json.parse(text)
    except ValueError:
        return text


def _headers(text: str) -> dict[str, str]:
    headers = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, sign, value = line.partition(":")
        if line.strip() and not (sign and name.strip() and value.strip()):
            raise ValueError(f"Line {number} is not of the form NAME: VALUE")
        if line.strip():
            headers[name.strip()] = value.strip()
    return headers
