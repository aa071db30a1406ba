"""The form of an agent's definition: its fields, the resulting definition, and errors by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from django import forms
from django.http import QueryDict

from agentops.accounts.settings_pages.page_parts import SHORT, sentence
from agentops.base.redaction.json_values import MaskedSecrets, masked
from runs.agents import placement
from runs.errors import InvalidAgent
from runs.pages.agents.definition_fields import (
    CHOICES,
    CODE_VERSION,
    LISTS_NOT_DURABLE,
    NOT_DURABLE,
    PLACEMENT,
    SETTINGS,
    groups,
)
from runs.pages.forms import form_fields
from runs.pages.forms.fields import NEEDED, NUMBER
from runs.pages.forms.form_fields import Kind, NotShowable, ValueField
from runs.pages.forms.rule_rows import RuleRows
from runs.providers import base as providers
from runs.providers import remote
from runs.tools.catalogue import TOOLS

#: The members of a definition that each have one field of the form.
SIMPLE = ("agent_id", "provider", "model", "max_steps", "instructions")
#: All members of a definition.
MEMBERS = frozenset({*SIMPLE, "tools", "settings", "policies", *placement.FIELDS})
SETTING_FIELDS = {f"setting-{name}": field for name, field in SETTINGS.items()}
MAX_TOOLS = 200
#: Maximum fields of rules in a form. Django reads at most 1000 fields of a request.
MAX_CONTROLS = 800


class DefinitionForm(forms.Form):
    """The form of the definition `stored`, filled from it, or with submitted values.

    A value that the user has not changed keeps its stored value, including the secrets that the form masks. So do the
    values without a meaning for a remote agent, which its form does not show. `adds`: the name of a list of rules that
    gets a new row. Raises NotShowable if a part of the definition has no field.
    """

    agent_id = ValueField(
        "Name",
        Kind.LINE,
        "Lower-case letters, digits and dashes. It cannot be changed later.",
        attrs=SHORT | NEEDED | {"maxlength": 63},
    )
    provider = ValueField("Provider", Kind.CHOICE)
    model = ValueField(
        "Model",
        Kind.LINE,
        "As `vendor:model`, or the name of a recording.",
        attrs=SHORT | NEEDED | {"maxlength": 200, "list": "agent-models"},
    )
    instructions = ValueField("Instructions", Kind.AREA, attrs={"rows": 8})
    max_steps = ValueField("Steps of a run", Kind.COUNT, attrs=NUMBER | NEEDED)
    #: The template shows the tools with their descriptions.
    tools = forms.Field(required=False)
    more_tools = ValueField(
        "Other tools",
        Kind.AREA,
        "One in each line: `mcp:SERVER` for the tools of an MCP server, `recorded` for those of a recording.",
        attrs={"spellcheck": "false"},
    )
    settings = ValueField("Other settings", Kind.JSON, "JSON object.", attrs={"rows": 3})

    def __init__(
        self,
        stored: Mapping[str, Any],
        data: QueryDict | None = None,
        *,
        secrets: MaskedSecrets | None = None,
        adds: str = "",
    ) -> None:
        self.stored, self.secrets = stored, secrets or MaskedSecrets()
        shown, policies = masked(dict(stored)), _policies_of(stored)
        self.stored_tools = _tools_of(shown)
        #: Whether durable functions execute the runs of the stored agent: in workers, or in processes elsewhere.
        self.is_durable = stored.get("provider") in remote.DURABLE
        self.is_packaged = stored.get("provider") == remote.PACKAGE
        sent = None if self.is_durable else data
        self.chosen_tools = self.stored_tools if sent is None else _sent_tools(sent, self.stored_tools)
        known = {each.name for each in TOOLS.entries()}
        initial = _texts_of(shown) | {"more_tools": "\n".join(name for name in self.chosen_tools if name not in known)}
        if data is not None:
            data = data.copy()
            data["more_tools"] = initial["more_tools"]
        super().__init__(data, initial=initial)
        self.fields |= deepcopy({**SETTING_FIELDS, **PLACEMENT, **CHOICES})
        provider = self.fields["provider"]
        assert isinstance(provider, ValueField)
        provider.choices = [(name, name) for name in providers.names()]
        unused = LISTS_NOT_DURABLE if self.is_durable else frozenset()
        self._keep_unused()
        self.lists = {
            group.name: RuleRows(
                group,
                policies.get(group.name),
                None if group.name in unused else data,
                secrets=secrets,
                adds=adds == group.name,
            )
            for group in groups()
        }
        self.shown_lists = {name: rows for name, rows in self.lists.items() if name not in unused}
        if sum(rows.total_form_count() * len(rows.group.fields) for rows in self.lists.values()) > MAX_CONTROLS:
            raise NotShowable("there are more rules than a form can have")
        if unknown := sorted(policies.keys() - {*self.lists, *CHOICES}):
            raise NotShowable(f"the form has no field for the policy {unknown[0][:64]!r}")

    def _keep_unused(self) -> None:
        """Let the fields without a meaning for the agent keep their values, and adapt texts if its code is durable."""
        for name in NOT_DURABLE if self.is_durable else (f"setting-{CODE_VERSION}",):
            self.fields[name].disabled = True
        if self.is_durable:
            self.fields["instructions"].label = "Description"
            self.fields["model"].help_text = "The code reports the models that it calls."
            if not self.is_packaged:
                self.fields["queue"].help_text = "Only processes that serve this queue execute the runs."

    @property
    def setting_fields(self) -> list[forms.BoundField]:
        """The fields of settings, for the template."""
        return [self[name] for name in SETTING_FIELDS if not self.fields[name].disabled]

    @property
    def placement_fields(self) -> list[forms.BoundField]:
        """The fields of queue, priority and limit, for the template."""
        return [self[name] for name in PLACEMENT]

    @property
    def choice_fields(self) -> list[forms.BoundField]:
        """The policy fields that are choices, for the template."""
        return [self[name] for name in CHOICES if not self.fields[name].disabled]

    @property
    def error_count(self) -> int:
        """Return the number of errors of the fields and of all rules."""
        in_rows: int = sum(rows.total_error_count() for rows in self.lists.values())
        return in_rows + sum(map(len, self.errors.values()))

    def add_problems(self, problems: Iterable[InvalidAgent]) -> None:
        """Add the error of each problem to the field that its JSON pointer names."""
        for problem in problems:
            path, text = str(problem.data.get("pointer", "")).split("/")[1:], sentence(problem)
            match path:
                case ["policies", name, *rest] if name in self.lists:
                    self.lists[name].add_problem(rest, text)
                    continue
                case ["settings", *rest]:
                    names = [f"setting-{'.'.join(rest[:length])}" for length in (2, 1)]
                    filled = (name for name in names if name in SETTING_FIELDS and self[name].value())
                    at = "setting-root" if rest == ["root"] else next(filled, "settings")
                case ["policies", name, *_] | [name, *_]:
                    at = name
                case _:
                    at = ""
            self.add_error(at if at in self.fields else None, text)

    def clean_settings(self) -> dict[str, Any]:
        """Return the settings with their secrets. Raises ValidationError for JSON that is not an object."""
        value = self.cleaned_data["settings"]
        if value is not None and not isinstance(value, dict):
            raise forms.ValidationError("Enter a JSON object.")
        restored: dict[str, Any] = self.secrets.restore(value or {})
        return restored

    def definition(self) -> dict[str, Any]:
        """Return the definition of a submitted form."""
        self.full_clean()
        definition: dict[str, Any] = {}
        for name in SIMPLE:
            is_same = name not in self.changed_data and name in self.stored
            definition[name] = self.stored[name] if is_same else self._sent(name, "")
        for name in PLACEMENT:
            # An empty queue or priority is not changed; an empty number means no limit.
            if (value := self.cleaned_data[name]) is not None or name == "max_running":
                definition[name] = value
        is_same = self.chosen_tools == self.stored_tools
        definition["tools"] = self.stored["tools"] if is_same else self.secrets.restore(self.chosen_tools)
        definition["settings"] = self._settings(self.stored.get("settings", {}))
        policies = {name: self.cleaned_data[name] for name in CHOICES}
        policies |= {name: rows.value for name, rows in self.lists.items()}
        definition["policies"] = {name: value for name, value in policies.items() if value is not None}
        return definition

    def _sent(self, name: str, default: Any = None) -> Any:
        """Return the submitted value of a field with its secrets, or `default` if it is empty."""
        value = self.cleaned_data.get(name)
        return default if value is None else self.secrets.restore(value)

    def _settings(self, stored: Mapping[str, Any]) -> Any:
        """Return the submitted settings: unchanged values are the stored ones."""
        changed = set(self.changed_data)
        if not changed & {"settings", *SETTING_FIELDS}:
            return stored
        own, others = _split(stored)
        settings = dict(self.cleaned_data.get("settings", {}) if "settings" in changed else others)
        for path in SETTINGS:
            name = f"setting-{path}"
            value = self._sent(name) if name in changed else own.get(path)
            if value is None:
                continue
            parent, _, member = path.rpartition(".")
            members = settings
            if parent:
                others_inside = settings.get(parent, {})
                members = settings[parent] = dict(others_inside) if isinstance(others_inside, dict) else {}
            if member in members:
                self.add_error("settings", f"{path} has a field of its own: set it there.")
            members[member] = value
        return settings


def _policies_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policies. Raises NotShowable, also for an unknown member of the definition."""
    policies = stored.get("policies", {})
    if not isinstance(policies, dict) or stored.keys() - MEMBERS:
        raise NotShowable("the form has no field for a part of the definition")
    return policies


def _tools_of(shown: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools. Raises NotShowable."""
    tools = shown.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, str) for tool in tools):
        raise NotShowable("tools is not a list of names")
    return tools


def _sent_tools(data: QueryDict, before: list[str]) -> list[str]:
    """Return the selected tools and the typed ones. Tools in `before` come first, in that order.

    Typed tools are separated by newlines or commas.
    """
    typed = form_fields.clean_text(data.get("more_tools", ""), Kind.AREA).replace("\n", ",").split(",")
    names = [form_fields.clean_text(name, Kind.LINE) for name in (*data.getlist("tools"), *typed)]
    chosen = dict.fromkeys(name for name in names if name)
    return list(dict.fromkeys([*(name for name in before if name in chosen), *chosen]))[:MAX_TOOLS]


def _texts_of(shown: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the fields. Settings without a field, or of another type than their field, are JSON."""
    settings, policies = shown.get("settings", {}), shown.get("policies", {})
    if not isinstance(settings, dict):
        raise NotShowable("settings is not an object")
    own, others = _split(settings)
    texts = {name: form_fields.text_of(shown.get(name, ""), Kind.COUNT) for name in SIMPLE if name != "instructions"}
    texts["instructions"] = form_fields.text_of(shown.get("instructions", ""), Kind.AREA)
    for values, fields in ((own, SETTINGS), (shown, PLACEMENT), (policies, CHOICES)):
        prefix = "setting-" if fields is SETTINGS else ""
        texts |= {prefix + name: form_fields.text_of(values.get(name), each.kind) for name, each in fields.items()}
    return {**texts, "settings": form_fields.json_of(others) if others else ""}


def _split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that have a field, by their path, and the others as an object."""
    flat = {name: value for name, value in settings.items() if name != "budgets"}
    others = {}
    budgets = settings.get("budgets")
    if budgets is not None:
        members = {f"budgets.{name}": value for name, value in budgets.items()} if isinstance(budgets, dict) else {}
        if members and all(_has_field(name, value) for name, value in members.items()):
            flat |= members
        else:
            others["budgets"] = budgets
    own = {name: value for name, value in flat.items() if _has_field(name, value)}
    return own, {**{name: value for name, value in flat.items() if name not in own}, **others}


def _has_field(name: str, value: object) -> bool:
    return name in SETTINGS and form_fields.is_showable(value, SETTINGS[name].kind) and value not in ("", [])
