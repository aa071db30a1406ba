"""Create runs: the log, the row, the first messages and the first event, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import transaction
from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

from agentops.accounts.models import Project
from agentops.base import database_clock, schema_checks
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.refusals import Invalid
from runs.agents import budgets, output_schema
from runs.agents.budgets import ChildLimits, child_limits
from runs.conversation import transcript, trimming
from runs.conversation.transcript import SHORT_PREVIEW, text_of
from runs.errors import InvalidAgent, InvalidMaxSteps, MessageEmpty
from runs.lifecycle import command_outcomes, inbox, moves
from runs.lifecycle.moves import PHASES
from runs.lifecycle.title_limits import MAX_TITLE
from runs.lifecycle.wake import wake
from runs.models import Agent, AgentRun, AgentRunMessage, Checkpoint
from runs.providers import base as providers
from runs.providers.messages import canonical, content_of, request
from runs.providers.remote import PACKAGE, code_version_of
from runs.providers.retries import retry_limits
from runs.tools import rooted_files
from runs.tools.call_limits import parallel_limit
from runs.tools.catalogue import TOOLS
from runs.tools.front_end_tools import CONFIG_KEY
from runs.tools.sandbox import switches
from timeline import log
from timeline.display import preview
from timeline.events.run import RunCreated
from timeline.events.work import ChildRunStarted
from timeline.log import Entry
from timeline.models import Log, Phase, RunKind, Source

Role = AgentRunMessage.Role
UserTurn = str | list[Any]
#: An image or a document in pydantic-ai's format, as JSON.
Media = dict[str, Any]
#: Validated tools of a front end; see runs.tools.front_end_tools.
FrontEndTools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Origin:
    """The runs that a new run continues or belongs to, and the values that it inherits."""

    resumed_from: AgentRun | None = None
    parent_run: AgentRun | None = None
    #: A value of `OnChildPause`, if a call of the parent waits for the new run.
    on_pause: str = ""
    starts_fresh: bool = False
    #: For a fork: the checkpoint where it begins.
    forked_at: Checkpoint | None = None
    #: The flow run for which this run executes a node; also for a run that continues such a run.
    flow_run_id: UUID | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that the new run inherits unchanged."""
        names = ("parent_run", "on_pause", "flow_run_id", "starts_fresh")
        return {name: getattr(self, name) for name in names}

    @property
    def run_kind(self) -> RunKind:
        """The kind of the run that the new one continues or belongs to, so that runs within a job are jobs too."""
        related = self.resumed_from or (self.forked_at.run if self.forked_at is not None else self.parent_run)
        return RunKind(related.run_kind) if related is not None else RunKind.SESSION

    @property
    def steps(self) -> int:
        """The number of steps in the conversation before the new run."""
        if self.forked_at is not None:
            return self.forked_at.step_number
        return self.resumed_from.step_count if self.resumed_from is not None else 0


@dataclass(frozen=True)
class Opening:
    """The input of a new run."""

    config: dict[str, Any]
    #: User messages; the first is the prompt of a first run.
    turns: list[UserTurn] = field(default_factory=list)
    max_steps: int | None = None
    title: str = ""
    labels: list[str] = field(default_factory=list)
    #: None: the kind of the run that the new run continues or belongs to.
    run_kind: RunKind | None = None
    #: The name of the creator.
    by: str = ""
    #: The message of a resume or a fork, also contained in the user messages. It is recorded as a command of the new
    #: run.
    message: str | None = None
    #: The schedule that starts the run, or that started the run that it continues.
    schedule_id: UUID | None = None


def create(
    project: Project,
    agent: Agent,
    prompt: UserTurn,
    *,
    by: str,
    parent_id: UUID | None = None,
    on_pause: str = "",
    front_end_tools: FrontEndTools = (),
    **options: Any,
) -> AgentRun:
    """Create a queued run of `agent`. Everything is validated before the first write. `options`: fields of `Opening`.

    `on_pause`: a value of `OnChildPause`, if a call of the parent waits for the run.

    Raises `InvalidAgent`, `MessageEmpty`, `InvalidMaxSteps` and `Invalid`.
    """
    check_agent(agent)
    if not _has_content(prompt):
        raise MessageEmpty("a run requires a prompt", pointer="/prompt")
    config = with_front_end_tools(agent.frozen(), front_end_tools)
    opening = Opening(config=config, turns=[prompt], by=by, **options)
    if parent_id is None:
        return open_run(project, agent, opening)
    with transaction.atomic():
        parent = lock_parent(project, parent_id)
        run = open_run(project, agent, opening, Origin(parent_run=parent, on_pause=on_pause))
        add_child_event(parent, run)
    return run


def add_child_event(parent: AgentRun, child: AgentRun) -> None:
    """Append the `child_run.started` event of a child that an external request created, in the caller's transaction."""
    payload = ChildRunStarted(run_id=str(child.pk), agent=str(child.agent_config.get("agent_id") or "") or None)
    entry = Entry(payload, phase=PHASES[parent.state], ref_id=child.pk, late=parent.state.terminal)
    log.append(parent.pk, [entry], source=Source.WEB)


def open_run(project: Project, agent: Agent | None, opening: Opening, origin: Origin | None = None) -> AgentRun:
    """Write a queued run in one transaction, and wake a worker after the commit. The caller has checked the opening."""
    origin = origin or Origin()
    # The prompt column is redacted like the messages, because a run that starts over begins with it.
    opening = replace(opening, turns=[_redacted(turn) for turn in opening.turns])
    before = origin.resumed_from
    with transaction.atomic():
        node_id = opening.config.get("node_id") or opening.config.get("agent_id") or ""
        kind = opening.run_kind or origin.run_kind
        ledger = Log.objects.create(project=project, node_id=str(node_id)[:128], run_kind=kind)
        now = database_clock.now()
        run = AgentRun(
            log=ledger,
            project=project,
            agent=agent,
            agent_config=opening.config,
            root_run_id=before.root_run_id if before else ledger.pk,
            resumed_from=before,
            schedule_id=opening.schedule_id,
            **origin.columns,
            **_placement(agent, opening, origin),
            forked_from=origin.forked_at.run if origin.forked_at else None,
            forked_at_step=origin.forked_at.step_number if origin.forked_at else None,
            step_base=origin.steps,
            step_count=origin.steps,
            max_steps=checked_max_steps(opening.max_steps, default=opening.config["max_steps"]),
            prompt=opening.turns[0] if opening.turns else None,
            # Cut here too, because masking can make a text longer.
            title=REDACTOR.clean_text(opening.title)[0][:MAX_TITLE] or _title(opening.turns),
            run_kind=kind,
            labels=list(dict.fromkeys(REDACTOR.clean_text(label)[0] for label in opening.labels)),
            created_at=now,
            queued_at=now,
        )
        run.save(force_insert=True)
        entries = [Entry(_created_event(opening, origin, run), phase=Phase.QUEUED)]
        if opening.message is not None:
            command = inbox.opening_message(run.pk, opening.message, by=opening.by)
            command.save(force_insert=True)
            command_outcomes.mark_applied([command])
            entries.append(replace(inbox.received_event(command), phase=Phase.QUEUED))
        messages = transcript.add_requests(
            run, _first_messages(opening, origin), step=run.step_base + 1, epoch=None, position=0
        )
        message_entries = [replace(transcript.message_event(row), phase=Phase.QUEUED) for row, _ in messages]
        log.append(run.pk, [*entries, *message_entries], source=Source.WEB)
        log.announce_run(project.pk, run.pk)
        moves.log_creation(run)
        wake(run)
    return run


def _placement(agent: Agent | None, opening: Opening, origin: Origin) -> dict[str, Any]:
    """Return who may execute a new run: its queue, its priority, and of a durable function, the version of the code.

    Queue and priority are those of its agent, or else of the run that it continues.
    """
    columns: dict[str, Any] = {
        "code_version": code_version_of(opening.config),
        "is_packaged": opening.config.get("provider") == PACKAGE,
    }
    source = agent or (origin.forked_at.run if origin.forked_at is not None else origin.resumed_from)
    return columns if source is None else {**columns, "queue": source.queue, "priority": source.priority}


def turn_of(message: str | None, media: Sequence[Media]) -> UserTurn:
    """Return a user message: the text alone, or a list of the text and the media."""
    return [*([message] if message else []), *media] if media else message or ""


def _redacted(turn: UserTurn) -> UserTurn:
    """Return a user message with redacted texts. Media are not changed."""
    if isinstance(turn, str):
        return cast("str", MODEL_INPUT.clean(turn)[0])
    return [
        part if isinstance(part, dict) and part.get("kind") == "binary" else MODEL_INPUT.clean(part)[0] for part in turn
    ]


def lock_parent(project: Project, run_id: UUID) -> AgentRun:
    """Return the parent of a new run, with its row locked, so that concurrent children cannot exceed the limit.

    Raises `Invalid` if the parent does not exist, or may not have a further child.
    """
    rows = AgentRun.objects.select_for_update(no_key=True, of=("self",))
    parent = rows.filter(project=project, pk=run_id).first()
    if parent is None:
        raise Invalid("the project has no such run", code="invalid_parent", pointer="/parent_run_id")
    depth = exceeded_depth(chain([parent], ancestors_of(parent)))
    if depth is not None:
        raise Invalid(
            f"runs can be nested at most {depth} levels deep", code="max_depth_exceeded", pointer="/parent_run_id"
        )
    limit = limits_of(parent).children
    if count_children(parent) >= limit:
        raise Invalid(
            f"a run can have at most {limit} children", code="max_children_exceeded", pointer="/parent_run_id"
        )
    return parent


def ancestors_of(run: AgentRun) -> Iterator[AgentRun]:
    """Yield the ancestors of a run, nearest first."""
    visited = {run.pk}
    # Each only once, because an imported run may be its own ancestor.
    while run.parent_run is not None and run.parent_run_id not in visited:
        visited.add(run.parent_run_id)
        run = run.parent_run
        yield run


def exceeded_depth(above: Iterable[AgentRun]) -> int | None:
    """Return the depth limit that a new run below these ancestors (nearest first) would exceed; None if none."""
    limits = (limits_of(run).depth for run in above)
    return next((limit for depth, limit in enumerate(limits, start=1) if depth > limit), None)


def limits_of(run: AgentRun) -> ChildLimits:
    """Return the limits for the descendants of a run. External runs have no settings, so the site's limits apply."""
    return child_limits((run.agent_config.get("settings") or {}) if run.source == AgentRun.Source.NATIVE else {})


def count_children(run: AgentRun) -> int:
    """Return the number of children of a run. A resumed child is not another child."""
    return AgentRun.objects.filter(parent_run=run, resumed_from=None).count()


def check_agent(agent: Agent) -> None:
    """Raise `InvalidAgent` if a run of this agent could not start."""
    for problem in agent_problems(agent):
        raise problem


def agent_problems(agent: Agent) -> Iterator[InvalidAgent]:
    """Yield the reasons why a run of this agent could not start. The `__cause__` of each is the original error."""
    tools = [tool for name in agent.tools if (tool := TOOLS.get(name)) is not None]
    checks: list[Callable[[], object]] = [
        lambda: providers.get(agent.provider).check(agent.model, agent.settings),
        lambda: TOOLS.resolve(agent.tools, {**agent.settings, "model": agent.model, "node": agent.slug}),
        lambda: switches.check(tools),
        lambda: rooted_files.check_root([tool.name for tool in tools if tool.reads_files], agent.settings),
        lambda: (
            rooted_files.locate_root(agent.settings.get("root"))
            if agent.provider in providers.WORKING_IN_ROOT
            else None
        ),
        lambda: budgets.run_limits(agent.settings),
        lambda: trimming.window_of(agent.settings),
        lambda: retry_limits(agent.settings),
        lambda: parallel_limit(agent.settings),
        lambda: child_limits(agent.settings),
        lambda: output_schema.schema_of(agent.settings),
    ]
    for check in checks:
        try:
            check()
        except (providers.ProviderUnusable, LookupError, ValueError, TypeError) as error:
            is_expensive = isinstance(error, output_schema.ExpensiveOutputSchema)
            code = schema_checks.TOO_EXPENSIVE if is_expensive else None
            problem = InvalidAgent(str(error), code=code, agent_id=agent.slug)
            problem.__cause__ = error
            yield problem


def with_front_end_tools(config: dict[str, Any], tools: FrontEndTools | None) -> dict[str, Any]:
    """Return a frozen agent with its front-end tools replaced; None leaves them unchanged."""
    if tools is None:
        return config
    others = {name: value for name, value in config.items() if name != CONFIG_KEY}
    if tools and config["provider"] in providers.WORKING_IN_ROOT:
        raise Invalid(
            "the program that runs this agent has its own tools only",
            code="frontend_tools_unsupported",
            pointer="/tools",
        )
    return others | ({CONFIG_KEY: list(tools)} if tools else {})


def checked_max_steps(value: Any, *, default: int) -> int:
    """Return a step budget that is valid: from 1 to the cap of a lineage. None: `default`. Raises `InvalidMaxSteps`."""
    if value is None:
        return int(default)
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= cap:
        raise InvalidMaxSteps(f"max_steps must be a whole number from 1 to {cap}", pointer="/max_steps")
    return value


def within_cap(steps: int) -> int:
    """Return an accepted step budget, reduced to the cap of a lineage if that was lowered since."""
    return min(steps, int(settings.AGENTOPS_MAX_TOTAL_STEPS))


def _first_messages(opening: Opening, origin: Origin) -> list[tuple[str, ModelRequest]]:
    """Return the first messages of a new run, each with its role: the instructions and the user messages.

    A run that continues a conversation gets no instructions, because the conversation has them. A fork gets them if
    they differ from those of the original run.
    """
    now = database_clock.now()
    rows: list[tuple[str, ModelRequest]] = []
    instructions = opening.config.get("instructions")
    if origin.forked_at is not None:
        needs_instructions = "instructions" in _changed_fields(opening, origin.forked_at.run)
    else:
        needs_instructions = origin.resumed_from is None or origin.starts_fresh
    if instructions and needs_instructions:
        rows.append((Role.SYSTEM, request(SystemPromptPart(instructions, timestamp=now))))
    rows += [(Role.USER, request(UserPromptPart(content_of(turn), timestamp=now))) for turn in opening.turns]
    return rows


def _changed_fields(opening: Opening, forked_from: AgentRun) -> list[str]:
    """Return the names of the fields in which a fork's agent differs from the original run's agent."""
    before, now = forked_from.agent_config, opening.config
    return sorted(name for name in now if canonical(now[name]) != canonical(before.get(name)))


def _created_event(opening: Opening, origin: Origin, run: AgentRun) -> RunCreated:
    short, _ = preview(_masked_text_of(opening.turns), SHORT_PREVIEW)
    fork = origin.forked_at
    return RunCreated(
        agent=str(opening.config.get("agent_id")),
        agent_version=opening.config.get("version"),
        prompt=short or None,
        parent_run_id=str(origin.parent_run.pk) if origin.parent_run else None,
        resumed_from=str(origin.resumed_from.pk) if origin.resumed_from else None,
        forked_from=str(fork.run_id) if fork else None,
        forked_at_step=fork.step_number if fork else None,
        changed=_changed_fields(opening, fork.run) or None if fork else None,
        by=opening.by or None,
    )


def text_of_turn(turn: UserTurn) -> str:
    """Return the text of a user message; media become placeholders."""
    return text_of({"parts": [{"part_kind": "user-prompt", "content": turn}]})


def _masked_text_of(turns: list[UserTurn]) -> str:
    """Return the text of the first user message for titles and events, masked; empty without one."""
    return REDACTOR.clean_text(text_of_turn(turns[0]))[0] if turns else ""


def _title(turns: list[UserTurn]) -> str:
    """Return the default title: the first line of the first user message."""
    lines = _masked_text_of(turns).strip().splitlines()
    return lines[0][:MAX_TITLE] if lines else ""


def _has_content(turn: UserTurn) -> bool:
    return bool(turn.strip()) if isinstance(turn, str) else bool(turn)
