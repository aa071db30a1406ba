"""Creating a run: everything is checked before anything is written."""

from __future__ import annotations

import pytest

from runs.errors import InvalidAgent, InvalidMaxSteps, MessageEmpty
from runs.lifecycle import creation
from runs.models import AgentRun
from tests.support.factories import make_agent, make_run
from timeline.models import Event, Log

pytestmark = pytest.mark.django_db


def test_a_run_is_created() -> None:
    agent = make_agent(instructions="Be brief.")
    run = creation.create(agent.project, agent, "Hello", by="alice", labels=["a"], max_steps=7)
    run = AgentRun.objects.get(pk=run.pk)
    assert (run.status, run.max_steps, run.step_base, run.step_count) == ("queued", 7, 0, 0)
    assert (run.root_run_id, run.title, run.prompt, run.labels) == (run.pk, "Hello", "Hello", ["a"])
    assert run.agent_config == agent.frozen()
    assert [(m.position, m.role, m.step_number) for m in run.messages.order_by("position")] == [
        (1, "system", 1),
        (2, "user", 1),
    ]
    events = list(Event.objects.filter(log=run.pk).order_by("seq").values_list("seq", "type", "phase", "source"))
    assert events == [
        (1, "run.created", "queued", "web"),
        (2, "message.added", "queued", "web"),
        (3, "message.added", "queued", "web"),
    ]


def test_a_later_change_of_the_agent_does_not_affect_the_run() -> None:
    run = make_run()
    run.agent.model = "claude-code-7e"
    run.agent.save()
    assert AgentRun.objects.get(pk=run.pk).agent_config["model"] == "claude-code-5c"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"provider": "oracle"}, "unknown provider 'oracle'"),
        ({"model": "no-such"}, "no fixture named 'no-such'"),
        ({"model": "../../etc/passwd"}, "cannot be named"),
        ({"tools": ["recorded", "rm"]}, "'rm'"),
        ({"settings": {"pace": -1}}, "pace"),
        ({"settings": {"pace": True}}, "pace"),
        ({"provider": "llm", "model": "gpt"}, "vendor:model"),
        ({"provider": "llm", "model": "acme:gpt"}, "unknown vendor 'acme'"),
        (
            {"provider": "llm", "model": "cohere:command"},
            "needs the package pydantic-ai-slim[cohere]: add it to requirements.local",
        ),
    ],
)
def test_an_unusable_agent_is_refused(fields: dict[str, object], says: str) -> None:
    agent = make_agent(**fields)  # type: ignore[arg-type]
    with pytest.raises(InvalidAgent, match=says.replace("[", r"\[").replace("]", r"\]")):
        creation.create(agent.project, agent, "Hello", by="alice")
    assert not Log.objects.exists()


@pytest.mark.parametrize("prompt", ["", "  \n\t", []])
def test_an_empty_prompt_is_refused(prompt: object) -> None:
    agent = make_agent()
    with pytest.raises(MessageEmpty):
        creation.create(agent.project, agent, prompt, by="alice")  # type: ignore[arg-type]
    assert not Log.objects.exists()


@pytest.mark.parametrize("value", [0, -1, 1_000_001, "50", 1.5, True])
def test_an_invalid_step_limit_is_refused(value: object) -> None:
    agent = make_agent()
    with pytest.raises(InvalidMaxSteps):
        creation.create(agent.project, agent, "Hello", by="alice", max_steps=value)
    assert not Log.objects.exists()


def test_without_a_step_limit_the_agents_limit_applies() -> None:
    agent = make_agent(max_steps=12)
    assert creation.create(agent.project, agent, "Hello", by="alice", max_steps=None).max_steps == 12


def test_a_title_made_longer_by_masking_is_cut() -> None:
    """PostgreSQL refuses a title longer than its column."""
    run = make_run(prompt="Hello", title="x" * 171 + " AKIAQ7QXW3ERT5YUI9OP rotates")

    assert len(run.title) == 200
    assert "x [REDACTED:" in run.title
    assert "AKIA" not in run.title
