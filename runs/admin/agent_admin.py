"""Administration of agents, created and changed by runs.actions.agent_definitions.apply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from agentops.accounts.access import Action, project_for
from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, id_filter
from agentops.admin_base.forms import ActionForm
from agentops.admin_base.pages import RecordAdmin, ScopedAdmin, Table
from agentops.base.http import strict_json
from agentops.base.redaction.redact import BARE
from agentops.base.refusals import Refusal
from runs.actions import agent_definitions
from runs.agents import placement
from runs.errors import InvalidAgent
from runs.models import Agent, AgentVersion

#: Keys of a definition → fields of the form with a different name.
FIELDS = {"agent_id": "slug"}
DEFINITION = ("provider", "model", "instructions", "tools", "max_steps", "settings", "policies", *placement.FIELDS)
#: Fields that keep their value if left empty.
STAYING = ("queue", "priority")


class JsonField(forms.CharField):
    """A JSON value, parsed strictly and displayed indented."""

    def __init__(self, *, empty: Any, **options: Any) -> None:
        self.empty = empty
        # Not stripped, so that positions in the parser's errors refer to the text.
        super().__init__(
            required=False,
            strip=False,
            initial=empty,
            widget=forms.Textarea({"rows": 4, "spellcheck": "false"}),
            **options,
        )

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)

    def to_python(self, value: Any) -> Any:
        text = str(value or "")
        if not text.strip():
            return self.empty
        try:
            return strict_json.parse(text)
        except strict_json.NotJson as fault:
            raise forms.ValidationError(cells.line(f"Not valid JSON: {fault}", 300)) from None

    def validate(self, value: Any) -> None:
        """Do nothing: the action validates the definition."""

    def run_validators(self, value: Any) -> None:
        """Do nothing: the value is not a text."""


class AgentForm(ActionForm):
    """The form that creates or changes an agent."""

    tools = JsonField(empty=[], help_text='JSON list of tool names, such as ["http_fetch", "read_file"].')
    settings = JsonField(empty={}, help_text="JSON object.")
    policies = JsonField(empty={}, help_text="JSON object.")

    class Meta:
        model = Agent
        fields = ("project", "slug", *DEFINITION)
        help_texts = {
            "slug": "Name of the agent, cannot be changed later. Lower-case letters, digits and dashes.",
            "queue": "Only workers that serve this queue execute the runs.",
            "priority": f"From 0, which comes first, to {placement.LAST_PRIORITY}.",
            "max_running": "Runs that workers execute at the same time. Leave empty for no limit.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.fields.keys() & set(STAYING):  # empty for users who may only view
            self.fields[name].required = False
        if "project" in self.fields:
            field: Any = self.fields["project"]
            field.queryset = self.scope.where(Action.CONFIGURE)

    def act(self, data: dict[str, Any]) -> Agent:
        """Create or change the agent. Raise AgentTaken if a new agent has the name of an existing one."""
        adding = self.instance._state.adding
        project_id = data["project"].pk if adding else self.instance.project_id
        project = project_for(self.principal, project_id, Action.CONFIGURE)
        definition = {name: data[name] for name in DEFINITION if name not in STAYING or data[name] not in ("", None)}
        # Browsers send CRLF line ends.
        definition["instructions"] = BARE.clean_text(data["instructions"].replace("\r\n", "\n"))[0]
        slug = data["slug"] if adding else self.instance.slug
        if adding and Agent.objects.filter(project=project, slug=slug).exists():
            raise AgentTaken(f"the project already has an agent {slug!r}: choose another name")
        agent, _ = agent_definitions.apply(project, {"agent_id": slug, **definition}, by=self.principal)
        return agent

    def field_of(self, refusal: Refusal) -> str | None:
        """Return the field from the JSON pointer of the refusal."""
        if isinstance(refusal, AgentTaken):
            return "slug"
        pointer = refusal.data.get("pointer", "")
        name = str(pointer).partition("/")[2].partition("/")[0]
        field = FIELDS.get(name, name)
        return field if field in self.fields else None


class AgentTaken(InvalidAgent):
    """A new agent has the name of an existing one."""


@admin.register(Agent)
class AgentAdmin(ScopedAdmin):
    """Agents."""

    form = AgentForm
    text_fields = ("slug", "model")
    loaded = (
        *("slug", "provider", "model", "max_steps", "version", "updated_at", "project_id", "project__slug"),
        *placement.FIELDS,
    )
    list_display = (
        cells.words("slug", "agent"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.words("provider"),
        cells.words("model", limit=60),
        cells.plain("max_steps"),
        cells.plain("version"),
        cells.moment("updated_at", "changed"),
    )
    list_filter = (ProjectFilter,)
    search_help_text = "Search by ID or prefix of it, or by part of the name or the model."
    facts: ClassVar[Any] = (
        ("Facts", (*list_display, cells.moment("created_at", "created"), cells.plain("id", "ID"))),
        ("Queue", tuple(cells.plain(name) for name in placement.FIELDS)),
        (
            "Definition",
            tuple(cells.payload(name) for name in ("instructions", "tools", "settings", "policies")),
        ),
    )
    add_fields = ("project", "slug", *DEFINITION)
    edit_fields = DEFINITION
    change_action = Action.CONFIGURE
    audited = True

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def tools(self, request: HttpRequest, obj: Agent) -> list[tuple[str, str]]:
        if not request.user.has_perm("runs.view_agentrun"):
            return []
        return [("Runs", f"{reverse('admin:runs_agentrun_changelist')}?project={obj.project_id}&agent={obj.pk}")]

    def history(self, request: HttpRequest, obj: Agent) -> Iterator[Table | None]:
        versions = agent_definitions.versions_of(obj)
        yield self.table(request, AgentVersion, versions, {"agent": obj.pk}, without="agent_id")


@admin.register(AgentVersion)
class AgentVersionAdmin(RecordAdmin):
    """Versions of agents, read-only. Each change of an agent makes one."""

    names = ("agent version", "agent versions")
    project_path = "agent__project"
    id_fields = ("id", "agent_id")
    text_fields = ("agent__slug", "created_by")
    search_help_text = "Search by ID or prefix of it, or by part of the agent or of who changed it."
    loaded = ("number", "changed", "created_by", "created_at", "agent_id", "agent__slug")
    list_display = (
        cells.link("agent_id", "runs_agent", "agent", text="agent__slug"),
        cells.plain("number", "version"),
        cells.payload("changed"),
        cells.words("created_by", "changed by", limit=60),
        cells.moment("created_at", "changed at"),
    )
    list_filter = (ProjectFilter, id_filter("agent"))
    facts: ClassVar[Any] = (
        ("Facts", (*list_display, cells.plain("id", "ID"))),
        ("Definition", (cells.payload("definition"),)),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        # Replaces the deferral of `versions_of` too.
        return super().for_list(rows.select_related("agent"))

    def name_of(self, obj: AgentVersion) -> str:
        return cells.line(f"Version {obj.number} of {obj.agent.slug}")
