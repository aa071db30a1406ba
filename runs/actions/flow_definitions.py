"""Create and change flows, with a version and an audit entry for each change."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from django.db import transaction
from django.db.models import QuerySet

from agentops.accounts import audit
from agentops.accounts.models import Project
from agentops.accounts.names import SLUG_PATTERN
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict
from runs.errors import FlowNotFound, InvalidFlow
from runs.flows.definition import DefinitionProblem, examine, pointer_of
from runs.lifecycle import creation, node_runs
from runs.models import Agent, Flow, FlowVersion
from runs.providers import flow_node
from runs.providers.messages import canonical
from runs.tools.catalogue import TOOLS

Outcome = Literal["created", "changed", "unchanged"]


class FlowAuditAction(enum.StrEnum):
    FLOW_CREATED = "flow.created"
    FLOW_CHANGED = "flow.changed"
    FLOW_DELETED = "flow.deleted"


class FlowChanged(Conflict):
    """The flow was changed or created by another request. `data["version"]` is its current version."""

    code = "flow_changed"


def problems_of(project: Project, definition: Any) -> list[DefinitionProblem]:
    """Return all problems of a definition, each with the JSON pointer of the invalid value."""
    return checked(project, definition)[1]


def checked(project: Project, definition: Any) -> tuple[dict[str, Any] | None, list[DefinitionProblem]]:
    """Return the definition with its defaults (None if its structure is invalid), and all its problems."""
    fields, problems = examine(definition)
    return fields, (problems if fields is None else [*problems, *_unusable_parts(project, fields)])


def apply(
    project: Project, definition: Any, *, by: audit.Actor, expected_version: int | None = None
) -> tuple[Flow, Outcome]:
    """Create the flow described by `definition`, or change the existing one.

    `expected_version`: the version that the caller has read; 0 if it expects no flow of this name; None to skip the
    check. Runs keep their copy of the definition. Raises `InvalidFlow` with all problems, or `FlowChanged`.
    """
    return store(project, usable(project, definition), by=by, expected_version=expected_version)


def usable(project: Project, definition: Any) -> dict[str, Any]:
    """Return the definition with its defaults, ready to be stored. Raises `InvalidFlow` with all problems.

    Call this outside of a transaction, because the check of a large definition may take seconds.
    """
    fields, problems = checked(project, definition)
    if fields is None or problems:
        first, more = problems[0], len(problems) - 1
        text = first.text + (f" (and {more} more)" if more else "")
        raise InvalidFlow(text, pointer=first.pointer, problems=problems)
    return fields


def store(
    project: Project, fields: dict[str, Any], *, by: audit.Actor, expected_version: int | None
) -> tuple[Flow, Outcome]:
    """Create or change a flow; see `apply`. `fields` are returned by `usable`. Raises `FlowChanged`."""
    slug, title = fields["flow_id"], fields.get("title") or ""
    with transaction.atomic():
        flows = Flow.objects.select_for_update(no_key=True)
        flow, created = flows.get_or_create(project=project, slug=slug, defaults={"definition": fields, "title": title})
        before = {} if created else flow.definition
        changed = sorted(
            name for name in {*before, *fields} if canonical(before.get(name)) != canonical(fields.get(name))
        )
        if not created:
            if not changed:
                return flow, "unchanged"
            if expected_version not in (None, flow.version):
                raise FlowChanged(f"the flow {slug!r} has version {flow.version} now", version=flow.version)
            flow.definition, flow.title, flow.version = fields, title, flow.version + 1
            flow.save(update_fields=["definition", "title", "version", "updated_at"])
        _store_version(flow, by, [] if created else changed)
        _audit(by, flow, before=before, changed=changed, is_new=created)
    return flow, "created" if created else "changed"


def delete(flow: Flow, *, by: audit.Actor) -> None:
    """Delete a flow and its versions. Its runs are kept, with their own copies of the definition."""
    with transaction.atomic():
        before = {"flow_id": flow.slug, "version": flow.version}
        audit.record(by, FlowAuditAction.FLOW_DELETED, project=flow.project, obj=flow, before=before)
        flow.delete()


def _unusable_parts(project: Project, fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    """Yield a problem for each agent or tool that the project does not have, or that a node cannot use."""
    names = {node["agent"] for node in fields["nodes"] if node["type"] == "agent"}
    agents = set(Agent.objects.filter(project=project, slug__in=names).values_list("slug", flat=True))
    for index, node in enumerate(fields["nodes"]):
        if node["type"] == "agent" and node["agent"] not in agents:
            text = f"the project has no agent {node['agent'][:64]!r}"
            yield DefinitionProblem("unknown_agent", text, pointer_of("nodes", index, "agent"))
        elif node["type"] == "tool":
            yield from _tool_problems(project, fields, node, index)


def _tool_problems(
    project: Project, fields: Mapping[str, Any], node: Mapping[str, Any], index: int
) -> Iterator[DefinitionProblem]:
    """Yield the problems of a tool node: an unknown tool, one for agents only, or invalid settings."""
    tool = TOOLS.get(node["tool"])
    at = pointer_of("nodes", index, "tool")
    if tool is None:
        text = f"there is no tool {node['tool'][:64]!r}; known are: {', '.join(TOOLS.names())}"
        yield DefinitionProblem("unknown_tool", text[:1000], at)
    elif tool.asks or tool.ends or tool.spawns:
        yield DefinitionProblem("unusable_tool", f"the tool {tool.name!r} is for agents only", at)
    else:
        settings = {**(node.get("settings") or {}), flow_node.CALL: {"tool": tool.name, "arguments": {}}}
        config = node_runs.tool_config(fields["flow_id"], 1, tool.name, settings)
        checked_fields = {name: config[name] for name in ("provider", "model", "tools", "settings")}
        caller = Agent(project=project, slug=fields["flow_id"], **checked_fields)
        for problem in creation.agent_problems(caller):
            yield DefinitionProblem("unusable_tool", str(problem), pointer_of("nodes", index, "settings"))


def find(project: Project, flow_id: str) -> Flow:
    """Return the flow of this name. Raises `FlowNotFound`, for an invalid name without a query."""
    is_valid = re.match(SLUG_PATTERN, flow_id)
    flow = Flow.objects.filter(project=project, slug=flow_id).first() if is_valid else None
    if flow is None:
        raise FlowNotFound(f"there is no flow {flow_id[:64]!r} in project {project.slug!r}")
    return flow


def versions_of(flow: Flow) -> QuerySet[FlowVersion]:
    """Return the versions of a flow without their definitions, the newest first."""
    return FlowVersion.objects.filter(flow=flow).defer("definition").order_by("-number")


def definition_at(flow: Flow, number: int) -> dict[str, Any] | None:
    """Return the definition of a version; None if the version is not stored."""
    if number == flow.version:
        current: dict[str, Any] = flow.definition
        return current
    stored = FlowVersion.objects.filter(flow=flow, number=number)
    return stored.values_list("definition", flat=True).first()


def _store_version(flow: Flow, by: audit.Actor, changed: list[str]) -> None:
    FlowVersion.objects.create(
        flow=flow,
        number=flow.version,
        definition=flow.definition,
        changed=changed,
        created_by=(by if isinstance(by, str) else by.actor)[:200],
        created_at=flow.updated_at,
    )


def _audit(by: audit.Actor, flow: Flow, *, before: Mapping[str, Any], changed: list[str], is_new: bool) -> None:
    """Record the change. The audit log keeps definitions redacted, since they may contain secrets."""
    action = FlowAuditAction.FLOW_CREATED if is_new else FlowAuditAction.FLOW_CHANGED
    after = {"flow_id": flow.slug, "version": flow.version, **{name: flow.definition.get(name) for name in changed}}
    earlier = None if is_new else REDACTOR.clean({name: before.get(name) for name in changed})[0]
    audit.record(by, action, project=flow.project, obj=flow, before=earlier, after=REDACTOR.clean(after)[0])  # type: ignore[arg-type]
