"""The form of an agent's definition: texts of fields, the resulting definition, and errors by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict

from agentops.base.redaction.masked_secrets import MaskedSecrets, masked
from runs.agents import placement
from runs.errors import InvalidAgent
from runs.pages.agents.definition_fields import CHOICES, PLACEMENT, SETTINGS, groups
from runs.pages.forms import form_fields
from runs.pages.forms.form_fields import FieldType, FilledField, InvalidField, Kind, NotShowable
from runs.pages.forms.rule_rows import RuleRows, read_rows, shown_rows

LINES = ("agent_id", "provider", "model", "max_steps")
#: The fields of a definition.
KEYS = frozenset({*LINES, "instructions", "tools", "settings", "policies", *placement.FIELDS})
#: Errors of the definition as a whole.
WHOLE = "whole"
MAX_TOOLS = 200
#: Maximum fields of rules in a form. Django reads at most 1000 fields of a request.
MAX_CONTROLS = 800


@dataclass
class DefinitionForm:
    """The form, filled with a definition or with submitted values."""

    #: Name of a field outside the lists of rules → its text.
    texts: dict[str, str]
    tools: list[str]
    lists: dict[str, RuleRows]
    errors: dict[str, list[str]] = field(default_factory=dict)

    @property
    def settings(self) -> list[FilledField]:
        """The fields of settings for the template."""
        return [self._filled(each, f"setting-{each.name}") for each in SETTINGS]

    @property
    def placement(self) -> list[FilledField]:
        """The fields of queue, priority and limit, for the template."""
        return [self._filled(each, each.name) for each in PLACEMENT]

    @property
    def choices(self) -> list[FilledField]:
        """The policy fields that are choices, for the template."""
        return [self._filled(each, each.name) for each in CHOICES]

    @property
    def has_errors(self) -> bool:
        return self.error_count > 0

    @property
    def error_count(self) -> int:
        return sum(map(len, self.errors.values())) + sum(rows.error_count for rows in self.lists.values())

    def add_problems(self, problems: Iterable[InvalidAgent]) -> None:
        """Add the error of each problem to the field that its pointer names."""
        for problem in problems:
            text = str(problem).rstrip(".")
            self._add_error(str(problem.data.get("pointer", "")).split("/")[1:], f"{text[:1].upper()}{text[1:]}.")

    def _add_error(self, path: list[str], text: str) -> None:
        match path:
            case ["policies", name, *rest] if name in self.lists:
                row, field_name = self.lists[name].row_at(rest)
                if row is not None:
                    return row.add_error(field_name, text)
                return self.lists[name].errors.append(text)
            case ["policies", name, *_] if name in self.texts:
                at = name
            case ["settings", *rest]:
                names = [f"setting-{'.'.join(rest[:length])}" for length in (2, 1)]
                at = next((name for name in names if self.texts.get(name)), "settings")
                if rest == ["root"]:
                    at = "setting-root"
            case [name, *_] if name in {*self.texts, "tools"}:
                at = name
            case _:
                at = WHOLE
        return self.errors.setdefault(at, []).append(text)

    def _filled(self, type_: FieldType, name: str) -> FilledField:
        return FilledField(type_, name, self.texts[name], self.errors.get(name, []))


def form_of(definition: Mapping[str, Any]) -> DefinitionForm:
    """Return the form of a definition, with its secrets masked. Raise NotShowable if a part has no field."""
    shown = masked(dict(definition))
    policies, tools = definition.get("policies", {}), shown.get("tools", [])
    if not isinstance(policies, dict) or definition.keys() - KEYS:
        raise NotShowable("the form has no field for a part of the definition")
    if not isinstance(tools, list) or not all(isinstance(tool, str) for tool in tools):
        raise NotShowable("tools is not a list of names")
    lists = {group.name: shown_rows(group, policies.get(group.name)) for group in groups()}
    if sum(len(rows.rows) * len(rows.group.fields) for rows in lists.values()) > MAX_CONTROLS:
        raise NotShowable("there are more rules than a form can have")
    if unknown := sorted(policies.keys() - {*lists, *(each.name for each in CHOICES)}):
        raise NotShowable(f"the form has no field for the policy {unknown[0][:64]!r}")
    texts = {name: form_fields.text_of(shown.get(name, ""), Kind.COUNT) for name in LINES}
    texts["instructions"] = form_fields.text_of(shown.get("instructions", ""), Kind.AREA)
    texts |= {each.name: form_fields.text_of(shown.get(each.name), each.kind) for each in PLACEMENT}
    texts |= {each.name: form_fields.text_of(shown.get("policies", {}).get(each.name), each.kind) for each in CHOICES}
    return DefinitionForm(texts | _setting_texts(shown.get("settings", {})), tools, lists)


def read_form(
    data: QueryDict, stored: Mapping[str, Any], secrets: MaskedSecrets
) -> tuple[DefinitionForm, dict[str, Any]]:
    """Return a submitted form, and the resulting definition.

    Values that equal the form of the definition `stored` keep their stored value, including masked secrets.
    """
    before = form_of(stored)
    policies = stored.get("policies", {})
    lists = {name: read_rows(rows.group, data, policies.get(name), secrets) for name, rows in before.lists.items()}
    kinds = {"instructions": Kind.AREA, "settings": Kind.AREA}
    texts = {name: form_fields.clean_text(data.get(name, ""), kinds.get(name, Kind.LINE)) for name in before.texts}
    form = DefinitionForm(texts, _tools(data, before.tools), lists)
    definition: dict[str, Any] = {}
    for name in (*LINES, "instructions"):
        if texts[name] == before.texts[name] and name in stored:
            definition[name] = stored[name]
        else:
            kind = Kind.COUNT if name == "max_steps" else Kind.LINE
            definition[name] = secrets.restore(form_fields.value_of(texts[name], kind))
    for each in PLACEMENT:
        # An empty queue or priority is not changed; an empty number means no limit.
        if texts[each.name] or each.name == "max_running":
            definition[each.name] = form_fields.value_of(texts[each.name], each.kind) if texts[each.name] else None
    definition["tools"] = stored["tools"] if form.tools == before.tools else secrets.restore(form.tools)
    definition["settings"] = _settings(form, before, stored.get("settings", {}), secrets)
    definition["policies"] = {
        name: value
        for name, value in {
            **{each.name: texts[each.name] or None for each in CHOICES},
            **{name: rows.value(policies.get(name)) for name, rows in lists.items()},
        }.items()
        if value is not None
    }
    return form, definition


def _tools(data: QueryDict, before: list[str]) -> list[str]:
    """Return the selected tools, and typed tools, separated by newlines or commas.

    Tools in `before` keep their order.
    """
    typed = form_fields.clean_text(data.get("more_tools", ""), Kind.AREA).replace("\n", ",").split(",")
    names = [form_fields.clean_text(name, Kind.LINE) for name in (*data.getlist("tools"), *typed)]
    chosen = dict.fromkeys(name for name in names if name)
    return list(dict.fromkeys([*(name for name in before if name in chosen), *chosen]))[:MAX_TOOLS]


# --- Settings ---------------------------------------------------------------------------------------------------------


def _setting_texts(settings: Any) -> dict[str, str]:
    """Return the texts of the settings' fields.

    Settings without a field, or of another type than it, are in `settings`.
    """
    if not isinstance(settings, dict):
        raise NotShowable("settings is not an object")
    own, others = _split(settings)
    texts = {f"setting-{each.name}": form_fields.text_of(own.get(each.name), each.kind) for each in SETTINGS}
    return {**texts, "settings": form_fields.json_of(others) if others else ""}


def _split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that have a field, by its name, and the others."""
    types = {each.name: each for each in SETTINGS}
    flat = {name: value for name, value in settings.items() if name != "budgets"}
    others = {}
    budgets = settings.get("budgets")
    if budgets is not None:
        members = {f"budgets.{name}": value for name, value in budgets.items()} if isinstance(budgets, dict) else {}
        if members and all(_has_field(types, name, value) for name, value in members.items()):
            flat |= members
        else:
            others["budgets"] = budgets
    own = {name: value for name, value in flat.items() if _has_field(types, name, value)}
    return own, {**{name: value for name, value in flat.items() if name not in own}, **others}


def _has_field(types: Mapping[str, FieldType], name: str, value: object) -> bool:
    return name in types and form_fields.is_showable(value, types[name].kind) and value not in ("", [])


def _settings(form: DefinitionForm, before: DefinitionForm, stored: Mapping[str, Any], secrets: MaskedSecrets) -> Any:
    names = ["settings", *(f"setting-{each.name}" for each in SETTINGS)]
    if all(form.texts[name] == before.texts[name] for name in names):
        return stored
    stored_own, stored_others = _split(stored)
    settings: dict[str, Any] = stored_others
    if form.texts["settings"] != before.texts["settings"]:
        settings = _other_settings(form, secrets)
    settings = dict(settings)
    for each in SETTINGS:
        if text := form.texts[f"setting-{each.name}"]:
            is_same = text == before.texts[f"setting-{each.name}"]
            value = stored_own[each.name] if is_same else secrets.restore(form_fields.value_of(text, each.kind))
            parent, _, member = each.name.rpartition(".")
            inside = settings
            if parent:
                given = settings.get(parent, {})
                inside = settings[parent] = dict(given) if isinstance(given, dict) else {}
            if member in inside:
                form.errors.setdefault("settings", []).append(f"{each.name} has a field of its own: set it there.")
            inside[member] = value
    return settings


def _other_settings(form: DefinitionForm, secrets: MaskedSecrets) -> dict[str, Any]:
    text = form.texts["settings"].strip()
    try:
        value = form_fields.value_of(text, Kind.JSON) if text else {}
    except InvalidField as error:
        form.errors.setdefault("settings", []).append(str(error))
        return {}
    if not isinstance(value, dict):
        form.errors.setdefault("settings", []).append("Enter a JSON object.")
        return {}
    restored: dict[str, Any] = secrets.restore(value)
    return restored
