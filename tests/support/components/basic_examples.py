"""The smallest components: statuses with their reasons, buttons, menus, messages, the bell, copy boxes, pagers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest

from agentops.accounts.models import Project
from runs.flows.kernel.snapshot import NodeStatus
from runs.models import FileImport, ImportState
from runs.pages import commands
from runs.pages.overview.site_lines import SiteLine
from runs.pages.run.action_commands import approval_command
from runs.queries.overview.needs import label_of
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from tests.support.components.rendered_examples import Example, ExampleFrame
from tests.support.components.sample_content import SampleContent
from tests.support.components.sample_rows import sample_project, sample_run
from timeline.display import clean
from timeline.reasons import reason_label

LEVELS = (messages.SUCCESS, messages.INFO, messages.WARNING, messages.ERROR)
#: Statuses of other objects than runs and tool calls: the status whose colour and icon they use, and their label.
_OTHERS = [("alert", "stalled"), ("escalated", "escalated"), ("completed", "done"), ("denied", "refused")]


def basic_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield the components. Adds messages to the request, so that the page shows them in the usual position."""
    for level in LEVELS:
        messages.add_message(request, level, clean(content.title))
    name, text = clean(content.name), clean(content.text)
    yield Example("Statuses", "components/_statuses.html", _statuses(name))
    yield Example("Buttons, menus and chips", "components/_controls.html", {"label": name, "text": text})
    yield from _of_the_bar(content)
    yield from _commands(request, content)
    for state in ImportState:
        yield Example(f"Import: {state.value}", "components/_import.html", {"import": _import(content, state)})
    for is_concern in (False, True):
        line = SiteLine(name, clean(content.error), is_concern, used=content.rows, limit=12 * is_concern)
        title = "Line of the site, a concern" if is_concern else "Line of the site"
        yield Example(title, "runs/overview/_line.html", {"line": line}, ExampleFrame.FACTS)


def _statuses(name: str) -> Mapping[str, Any]:
    held = [(RunStatus.PAUSED, reason_label(reason)) for reason in PauseReason]
    held += [(RunStatus.WAITING, reason_label(reason)) for reason in WaitReason]
    others = [*_OTHERS, *([("running", name)] if name else [])]
    return {"statuses": [*RunStatus, *ToolStatus], "others": others, "held": held, "nodes": list(NodeStatus)}


def _of_the_bar(content: SampleContent) -> Iterator[Example]:
    """Yield the contents of the top bar, and the links between pages."""
    project, name = sample_project(content), clean(content.name)
    bell = {"project": project, "count": content.rows, "label": label_of(content.rows)}
    yield Example("Bell", "runs/approvals/_bell.html", bell)
    projects = [Project(slug=f"sample-{at}", name=name) for at in content.entries]
    menu = {"label": name or "No name", "project": project, "projects": projects}
    yield Example("Menu of projects", "_project_menu.html", menu)
    yield Example("New runs", "runs/runs/_list_new.html", {"new": content.rows, "waiting": content.rows})
    yield Example("Tabs", "runs/imports/_import_tabs.html", {"project": project})
    yield Example("Tabs of settings", "accounts/_settings_tabs.html", {"project": project, "path": ""})
    pages = {"first": "", "next": "after=2", "is_first": not content.rows}
    yield Example("Pager", "runs/tabs/_pager.html", pages)


def _commands(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield commands to copy, and the notices of pages without content."""
    project, run = sample_project(content), sample_run(content)
    command = approval_command(request, run, run.pk)
    yield Example("Command to copy", "runs/run/_as_command.html", {"command": command})
    yield Example("Command of a page", "accounts/_command.html", {"command": clean(content.name)})
    for is_verified in (False, True):
        address = {"email": clean(content.name), "is_verified": is_verified}
        yield Example("E-mail address", "accounts/_address_state.html", address)
    first = {"project": project, "commands": commands.first_run(project)[: content.rows], "may_operate": True}
    yield Example("Empty list", "runs/runs/_list_first.html", first)
    yield Example("Before a search", "runs/search/_search_help.html", {})


def _import(content: SampleContent, state: ImportState) -> FileImport:
    """Return an import of a file that is half finished."""
    counts = {"new_runs": content.rows, "new_events": content.number, "attempts": content.rows}
    file_import = FileImport(file_name=clean(content.name), state=state, events=2 * content.number or None, **counts)
    file_import.events_done = content.number
    file_import.left_out = {"count": content.number, "lines": [], "cut_line": None}
    return file_import
