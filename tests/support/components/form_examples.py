"""Forms with their errors: of agents, sinks, members, keys and redaction rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django import forms
from django.http import HttpRequest, QueryDict

from agentops.accounts.redaction_rules.rule_forms import SecretForm
from agentops.accounts.settings_pages.settings_forms import key_form, member_form
from runs.agents.definition import examine
from runs.models import Delivery, Sink
from runs.pages.agents.definition_form import DefinitionForm
from runs.pages.agents.edit_page import AgentDraft
from runs.pages.agents.shown_agent import tool_facts
from runs.pages.compare.differences import difference
from runs.pages.forms.fields import CODE, HiddenURL, OneLineField, TextField
from runs.pages.sinks.sink_page import prepared
from runs.tools.catalogue import TOOLS
from tests.support.components.rendered_examples import Example, ExampleFrame
from tests.support.components.sample_content import SampleContent
from tests.support.components.sample_rows import BEGIN, sample_id, sample_project
from timeline.display import clean


def form_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield forms filled with invalid content."""
    yield Example("Fields of an agent", "runs/agents/_agent_fields.html", _agent(content), ExampleFrame.FORM)
    errors = [("/policies", clean(content.error)), ("", clean(content.error))][: content.rows]
    draft = AgentDraft(0, content.text, errors, agent=None, origin=0, stored={})
    yield Example("Agent as text", "runs/agents/_agent_text.html", {"draft": draft}, ExampleFrame.FORM)
    changed = [difference("instructions", content.text, content.title)][: content.rows]
    conflict = {"what": "this agent", "conflict": changed, "version": 2, "url": "#"}
    saved = {"created_by": content.name, "number": 2, "created_at": BEGIN}
    yield Example("Conflict", "runs/forms/_conflict.html", {**conflict, "saved": saved})
    yield Example("Preview of changes", "runs/forms/_preview.html", {"preview": changed, "version": 2})
    yield from _of_fields(content)
    yield from _of_sinks(content)
    yield from _of_projects(content)


def _of_sinks(content: SampleContent) -> Iterator[Example]:
    name, error = clean(content.name), clean(content.error)
    sink = {"project": sample_project(content), "sink": Sink(pk=sample_id(5), name=name or "sink")}
    yield Example("Way back to a sink", "runs/sinks/_head.html", sink)
    test = prepared(Delivery(state=Delivery.State.DEAD, error=error, response=content.output, created_at=BEGIN))
    yield Example("Test of a sink", "runs/sinks/_test.html", {"test": test})


def _of_fields(content: SampleContent) -> Iterator[Example]:
    text = clean(content.text)

    class ExampleForm(forms.Form):
        line = OneLineField("URL", text, required=True)
        area = TextField("Headers", f"{text} `{clean(content.name)}`", CODE)
        url = OneLineField("Slack webhook", text, {"placeholder": clean(content.name)}, widget=HiddenURL)
        flag = forms.BooleanField(required=False, label="Remove this URL", help_text=text)

    form = ExampleForm({"line": content.title, "area": content.output, "url": content.title, "flag": "on"})
    for field in form:
        if content.rows:
            form.add_error(field.name, clean(content.error))
        yield Example(f"Field: {field.label}", "_field.html", {"field": field}, ExampleFrame.FORM)
    yield Example("Errors of a form", "_form_errors.html", {"form": _refused(form, content)})


def _of_projects(content: SampleContent) -> Iterator[Example]:
    project = sample_project(content)
    member = member_form({"who": content.text, "role": content.name})
    yield Example("New member", "accounts/_member_form.html", {"form": _refused(member, content), "project": project})
    key = key_form({"name": content.title * 2, "scopes": ["read", content.name], "days": "30"})
    yield Example("New API key", "accounts/_key_form.html", {"form": _refused(key, content), "project": project})
    for field in SecretForm({"name": content.text, "secret": ""}):
        yield Example(f"Redaction rule: {field.label}", "_field.html", {"field": field}, ExampleFrame.FORM)


def _refused(form: Any, content: SampleContent) -> Any:
    """Return the form with its errors and an additional error that belongs to no field."""
    form.add_error(None, clean(content.error) or "Not saved")
    return form


def _agent(content: SampleContent) -> Mapping[str, Any]:
    """Return the form of a definition with the errors from the product's validation."""
    rule = {"action": content.name, "tools": "(", "reason": content.text, "expires": content.title}
    definition = {
        "agent_id": content.name, "provider": content.name, "model": content.title, "instructions": content.markdown,
        "tools": [content.name], "max_steps": 0, "settings": {"temperature": content.rows, "root": content.name},
        "policies": {"approvals": [rule] * min(content.rows, 3), "on_error": {"action": "resume", "attempts": 0}},
    }  # fmt: skip
    form = _sent(DefinitionForm(definition))
    form.add_problems(examine(form.definition()).problems)
    tools = [(tool_facts(each), at % 2 == 0) for at, each in enumerate(TOOLS.entries()[:6])]
    return {"form": form, "models": [], "tools": tools}


def _sent(form: DefinitionForm) -> DefinitionForm:
    """Return the form as a browser sends it."""
    data = QueryDict(mutable=True)
    for part in [form, *(row for rows in form.lists.values() for row in [rows.management_form, *rows])]:
        data.update({field.html_name: "" if field.value() is None else str(field.value()) for field in part})
    data.setlist("tools", form.chosen_tools)
    return DefinitionForm(form.stored, data)
