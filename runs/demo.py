"""The initial data of a new site: an administrator, and a demo project whose runs play recorded sessions.

Each function is one transaction.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q

from agentops.accounts.access import SYSTEM, Principal
from agentops.accounts.audit import Actor
from agentops.accounts.memberships import add_member, create_project
from agentops.accounts.models import Project, Role
from runs.actions import agent_definitions, flow_definitions, run_actions
from runs.fixtures.fixture_files import load_named
from runs.lifecycle import creation, flow_transitions
from runs.models import Agent, AgentRun

SLUG = "demo"
NAME = "Demo"
LABEL = "demo"
#: The creator of the first runs.
BY = "system"
ADMIN = "admin"
PASSWORD_LENGTH = 20
#: Letters and digits that are not easily confused. A password of them has 115 bits.
LEGIBLE = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
#: The step limit of the agents. The longest recording has 219 steps.
MAX_STEPS = 500


@dataclass(frozen=True)
class Player:
    """An agent that plays a recording, and its first run."""

    agent_id: str
    recording: str
    #: How many times as fast as recorded; 0 without any waits.
    pace: float = 0
    #: The title of the run. If empty, the first line of the prompt.
    title: str = ""


PLAYERS = (
    # First, so that it starts at once. It plays 219 steps in about 3 minutes, with a new event about every 0.25 s.
    Player("demo-replay", "claude-code-b6", pace=30, title="Demo replay, live: a recorded session, 30 times as fast"),
    Player("claude-code-5c", "claude-code-5c"),
    Player("claude-code-7e", "claude-code-7e"),
    Player("claude-code-b6", "claude-code-b6"),
)
#: The agents of the demo flow, each with the first prompt of its recording.
FLOW_PLAYERS = (
    # Its last edits waited more than six minutes for a permission. A slower pace would delay the flow's question.
    Player("flow-change", "claude-code-5c", pace=15),
    Player("flow-plan", "claude-code-7e", pace=5),
    Player("flow-review", "claude-code-b6", pace=60),
)
FLOW_ID = "change-and-review"
FLOW: dict[str, Any] = {
    "flow_id": FLOW_ID,
    "title": "Two changes, a question, a review",
    "description": "Two agents work at the same time, a person decides, a third agent reviews. They play recordings.",
    "nodes": [
        {"id": "change", "type": "agent", "agent": "flow-change", "title": "Update the compiler"},
        {"id": "plan", "type": "agent", "agent": "flow-plan", "title": "Carry out a plan"},
        {
            "id": "approve",
            "type": "human",
            "title": "Go on to the review?",
            "question": "Both changes are made. The first one says: {{ outputs.change }}",
            "choices": ["review", "leave it"],
        },
        {"id": "review", "type": "agent", "agent": "flow-review", "title": "Review the branch"},
    ],
    "edges": [
        {"from": "change", "to": "approve"},
        {"from": "plan", "to": "approve"},
        {"from": "approve", "to": "review", "when": "outputs.approve == 'review'"},
    ],
}


#: A text, or the list of its texts and media.
Prompt = str | list[Any]


class DemoLogin(NamedTuple):
    """The login of an administrator."""

    name: str
    #: The password of a user that was just created; otherwise None, because it is not stored in plain text.
    password: str | None


def first_login() -> DemoLogin:
    """Return the login of the first active superuser or of the user `admin`. Create `admin` if there is none."""
    with transaction.atomic():
        user = User.objects.filter(Q(is_superuser=True, is_active=True) | Q(username=ADMIN)).order_by("pk").first()
        if user is not None:
            return DemoLogin(user.username, None)
        password = "".join(secrets.choice(LEGIBLE) for _ in range(PASSWORD_LENGTH))
        admin = User.objects.create_superuser(ADMIN, password=password)
        demo = Project.objects.filter(slug=SLUG).first()
        if demo is not None:
            add_member(demo, admin, Role.ADMIN, actor=SYSTEM)
    return DemoLogin(ADMIN, password)


def seed() -> bool:
    """Create the demo project with its agents and runs. Return False if it exists and is not empty."""
    with transaction.atomic():
        project = Project.objects.filter(slug=SLUG).first() or create_project(SLUG, NAME, actor=SYSTEM)
        if Agent.objects.filter(project=project).exists() or AgentRun.objects.filter(project=project).exists():
            return False
        for player in PLAYERS:
            agent, prompt = _agent(project, player)
            creation.create(project, agent, prompt, by=BY, title=player.title, labels=[LABEL])
        _start_flow(project)
    return True


def start_one(actor: Principal, project: Project) -> AgentRun:
    """Create the agent of the live demo in a project, unless it exists, and start a run of it.

    The agent plays a recording, so it needs no model.
    """
    with transaction.atomic():
        agent, prompt = _agent(project, PLAYERS[0], by=actor)
        return run_actions.create(actor, project, agent, prompt, title=PLAYERS[0].title, labels=[LABEL])


def _start_flow(project: Project) -> None:
    prompts = {player.agent_id: _agent(project, player)[1] for player in FLOW_PLAYERS}
    nodes = [node | ({"prompt": prompts[node["agent"]]} if "agent" in node else {}) for node in FLOW["nodes"]]
    flow, _ = flow_definitions.apply(project, FLOW | {"nodes": nodes}, by=SYSTEM)
    flow_transitions.create(flow_transitions.check_inputs(flow, {}), by=BY)


def _agent(project: Project, player: Player, by: Actor = SYSTEM) -> tuple[Agent, Prompt]:
    """Create or change the agent that plays a recording. Return it with the first prompt of the recording."""
    definition: dict[str, Any] = {
        "agent_id": player.agent_id,
        "provider": "fixture",
        "model": player.recording,
        "tools": ["recorded"],
        "max_steps": MAX_STEPS,
        "settings": {"pace": player.pace} if player.pace else {},
    }
    agent, _ = agent_definitions.apply(project, definition, by=by)
    prompt = load_named(player.recording).answers[0].input.prompt
    if prompt is None:
        raise LookupError(f"the recording {player.recording!r} has no prompt")
    return agent, prompt
