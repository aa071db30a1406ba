"""Forms with their errors: of agents, sinks, members, keys and redaction rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.http import HttpRequest

from agentops.accounts.redaction_rules.rule_forms import SecretForm
from agentops.accounts.settings_pages.settings_forms import key_form, member_form
from runs.agents.definition import examine
from runs.models import Delivery, Sink
from runs.pages.agents.definition_form import form_of
from runs.pages.agents.edit_page import Draft
from runs.pages.agents.shown_agent import tool_facts
from runs.pages.sinks.sink_fields import SinkField
from runs.pages.sinks.sink_page import prepared
from runs.tools.catalogue import TOOLS
from tests.support.components.rendered_examples import Example, ExampleFrame
from tests.support.components.sample_content import SampleContent
from tests.support.components.sample_rows import BEGIN, sample_id, sample_project
from timeline.display import clean


def form_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield forms filled with invalid content."""
    yield Example("Fields of an agent", "runs/_agent_fields.html", _agent(content), ExampleFrame.FORM)
    errors = [("/policies", clean(content.error)), ("", clean(content.error))][: content.rows]
    draft = Draft(None, 0, {}, 0, text=content.text, errors=errors)
    yield Example("Agent as text", "runs/_agent_text.html", {"draft": draft}, ExampleFrame.FORM)
    yield from _of_sinks(content)
    yield from _of_projects(content)


def _of_sinks(content: SampleContent) -> Iterator[Example]:
    name, error = clean(content.name), clean(content.error)
    sink = {"project": sample_project(content), "sink": Sink(pk=sample_id(5), name=name or "sink")}
    yield Example("Way back to a sink", "runs/sinks/_head.html", sink)
    for item in _sink_fields(content):
        field = {"item": item, "has_errors": True}
        yield Example(f"Field of a sink: {item.label}", "runs/sinks/_field.html", field, ExampleFrame.FORM)
    test = prepared(Delivery(state=Delivery.State.DEAD, error=error, response=content.output, created_at=BEGIN))
    yield Example("Test of a sink", "runs/sinks/_test.html", {"test": test})
    url = {"name": "slack_url", "label": "URL", "help": clean(content.text), "shown": name, "error": error}
    yield Example("URL of an alert", "runs/_alert_url.html", url, ExampleFrame.FORM)


def _of_projects(content: SampleContent) -> Iterator[Example]:
    project = sample_project(content)
    member = member_form({"who": content.text, "role": content.name})
    yield Example("New member", "projects/_member_form.html", {"form": _refused(member, content), "project": project})
    key = key_form({"name": content.title * 2, "scopes": ["read", content.name], "days": "30"})
    yield Example("New API key", "projects/_key_form.html", {"form": _refused(key, content), "project": project})
    rule = SecretForm({"name": content.text, "secret": ""})
    yield Example("Errors of a rule", "projects/_rule_errors.html", {"form": _refused(rule, content)})
    yield Example("Name of a rule", "projects/_rule_name.html", {"form": rule, "id": "rule-name"}, ExampleFrame.FORM)


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
    form = form_of(definition)
    form.add_problems(examine(definition).problems)
    tools = [(tool_facts(each), at % 2 == 0) for at, each in enumerate(TOOLS.registered()[:6])]
    return {"form": form, "providers": ["llm", "fixture"], "models": [], "tools": tools, "more_tools": content.text}


def _sink_fields(content: SampleContent) -> list[SinkField]:
    text, errors = clean(content.text), [clean(content.error)] * bool(content.rows)
    hint = clean(content.name)
    return [
        SinkField("url", "URL", text, is_required=True, value=content.title, errors=errors),
        SinkField("headers", "Headers", text, is_long=True, value=content.output, errors=errors),
        SinkField("secret", "Secret", text, is_secret=True, is_dropped=True, hint=hint, errors=errors),
    ]
