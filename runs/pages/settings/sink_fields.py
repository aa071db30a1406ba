"""The form of a sink: fields for the options and secrets of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import orjson
from django import forms

from agentops.accounts.settings_pages.page_parts import SECRET, SHORT, HiddenText, sentence
from agentops.base.http import strict_json
from agentops.base.redaction.json_values import MaskedSecrets, masked
from runs.models import Sink
from runs.pages.forms.fields import CODE, OneLineField, TextField
from runs.telemetry.sink_changes import SinkChange
from runs.telemetry.sink_kind import Problem, SinkKind
from runs.telemetry.sink_targets import WEBHOOK

#: Name of an option or a secret → label and help. Options of other packages are labelled with their names.
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
    "headers": ("Headers", "One NAME: VALUE in each line, such as Authorization: Bearer …. Sent with each request."),
    "secrets": ("Secret", "whsec_ and the base64 form of 24 to 64 bytes. Empty: a new one, which is shown once."),
}
#: Kind and name of an option → label and help that differ from `TEXTS`.
KIND_TEXTS = {("otlp", "url"): ("URL", "Of the traces, such as https://collector.example.org/v1/traces.")}


class SinkForm(forms.Form):
    """The form of a new sink of a kind, or of a stored sink. It does not contain stored secrets."""

    name = OneLineField("Name", "Lower-case letters, digits, - and _.", SHORT, required=True)

    def __init__(self, kind: SinkKind, sink: Sink | None, data: Any = None) -> None:
        super().__init__(data, initial=_initial(kind, sink))
        self.kind, self.sink = kind, sink
        hints = sink.secret_hints if sink is not None else {}
        self.option_names = list(kind.options_class.model_fields)
        # The secrets of a webhook are rotated instead.
        is_rotated = kind.name == WEBHOOK and sink is not None
        self.secret_names = [] if is_rotated else list(kind.secret_names)
        self.fields |= {name: _option(kind, name) for name in self.option_names}
        for name in self.secret_names:
            hint = _hint(hints.get(name))
            # A webhook without a secret gets one.
            is_required = kind.secret_names[name] and kind.name != WEBHOOK
            self.fields[name] = _secret(name, hint, is_required=is_required)
            if hint and not is_required:
                self.fields[f"{name}-forget"] = forms.BooleanField(required=False, label="Remove what is stored")
        self.fields["event_types"] = TextField("Event types", _types_help(kind), CODE | {"rows": 4})
        if sink is None:
            self.fields["from_start"] = forms.BooleanField(
                required=False,
                label="Also send all stored events",
                help_text="Otherwise it gets the events from now on.",
            )

    @property
    def first_fields(self) -> list[forms.BoundField]:
        """The fields before the event types, for the template."""
        return [field for field in self if field.name not in ("event_types", "from_start")]

    @property
    def error_count(self) -> int:
        return sum(map(len, self.errors.values()))

    def change(self) -> SinkChange:
        """Return the submitted values without those with errors. Empty options get the defaults of the kind."""
        self.full_clean()
        values = self.cleaned_data
        config = {name: values[name] for name in self.option_names if values.get(name, "") != ""}
        secrets = {name: values[name] for name in self.secret_names if values.get(name)}
        secrets |= {name: {} for name in self.secret_names if not values.get(name) and values.get(f"{name}-forget")}
        restored = MaskedSecrets(self.sink.config) if self.sink is not None else MaskedSecrets()
        return SinkChange(
            name=values.get("name", ""),
            config=restored.restore(config),
            secrets=secrets if secrets or self.sink is None else None,
            event_types=values["event_types"].replace(",", " ").split(),
        )

    def add_problems(self, problems: Sequence[Problem]) -> None:
        """Add each problem to its field. Skips a problem that the field already reports."""
        for name, text in problems:
            if name not in self.fields:
                self.add_error(None, f"{name}: {text}." if name else sentence(text))
            elif name not in self.errors:
                self.add_error(name, sentence(text))

    def ask_for_secrets_again(self) -> None:
        """Add an error to each secret that was entered: the form that is shown again does not contain it."""
        for name in self.secret_names:
            if self[name].data:
                self.add_error(name, "Secrets are not sent back: enter it again.")


class OptionField(OneLineField):
    """An option of a sink. `parse` returns the value of its text, or raises ValueError with the reason."""

    parse: Callable[[str], Any] = staticmethod(str)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        try:
            return self.parse(text) if text else ""
        except ValueError as error:
            raise forms.ValidationError(f"{error}.") from None


class HeadersField(OptionField):
    """Headers, one in each line."""

    def to_python(self, value: Any) -> str:
        return TextField.to_python(self, value)


def _initial(kind: SinkKind, sink: Sink | None) -> dict[str, Any]:
    stored = masked(sink.config) if sink is not None else {}
    return {
        **{name: _text_of(stored.get(name)) for name in kind.options_class.model_fields},
        "name": sink.name if sink is not None else "",
        "event_types": "\n".join(sink.event_types) if sink is not None else "",
    }


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else orjson.dumps(value).decode()


def _option(kind: SinkKind, name: str) -> OptionField:
    """Return the field of an option."""
    info = kind.options_class.model_fields[name]
    label, help_text = KIND_TEXTS.get((kind.name, name)) or TEXTS.get(name) or (name, info.description or "")
    # URLs may contain tokens.
    attrs = SHORT | SECRET if name.endswith("url") else SHORT
    field = OptionField(label, help_text, attrs, required=info.is_required())
    field.parse = str if str in (info.annotation, *get_args(info.annotation)) else _json
    return field


def _secret(name: str, hint: str, *, is_required: bool) -> OptionField:
    """Return the field of a secret. `hint`: a description of the stored secret, which an empty field keeps."""
    label, help_text = TEXTS.get(name, (name, ""))
    help_text += " Stored encrypted, and never shown again."
    help_text += f" Stored: `{hint}`. Leave empty to keep it." if hint else ""
    is_required = is_required and not hint
    if name == "headers":
        field: OptionField = HeadersField(
            label, help_text, CODE | SECRET | {"rows": 3}, widget=HiddenText, required=is_required
        )
        field.parse = _headers
    else:
        attrs = SHORT | SECRET | {"autocomplete": "new-password"}
        field = OptionField(label, help_text, attrs, widget=forms.PasswordInput, required=is_required)
        # The secrets of a webhook are a list, because a rotated one stays valid for some time.
        field.parse = (lambda text: [text]) if name == "secrets" else str
    return field


def _types_help(kind: SinkKind) -> str:
    default = ", ".join(kind.default_types) or "all events except pieces of streamed text"
    needed = " This kind always reads what its traces need." if kind.needed_types else ""
    return f"One in each line. `run.*` means all types that begin with `run.`. Empty: {default}.{needed}"


def _hint(hint: Any) -> str:
    """Return the hints of a stored secret as text; empty without one."""
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
    """Return headers by name. Raises ValueError for an invalid line."""
    headers = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, sign, value = line.partition(":")
        if line.strip() and not (sign and name.strip() and value.strip()):
            raise ValueError(f"Line {number} is not of the form NAME: VALUE")
        if line.strip():
            headers[name.strip()] = value.strip()
    return headers
