"""Agent definitions: accepted fields, the location in each error, and the audit log."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connections

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from agentops.accounts.models import AuditEntry, Project
from runs.actions import agent_definitions
from runs.actions.agent_definitions import AgentChanged
from runs.agents import policies
from runs.errors import InvalidAgent
from runs.models import Agent, AgentVersion
from tests.support import scripted_model

DEFINITION: dict[str, Any] = {"agent_id": "player", "provider": "fixture", "model": "claude-code-5c"}
TOML = """
agent_id = "player"
provider = "fixture"
model = "claude-code-5c"
tools = ["recorded"]
max_steps = 7
[settings]
pace = 1.5
[policies.on_error]
action = "resume"
"""


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


# --- apply ------------------------------------------------------------------------------------------------------
def test_apply_creates_and_changes_an_agent(project: Project) -> None:
    agent, outcome = agent_definitions.apply(project, DEFINITION, by="cli:alice")
    assert (outcome, agent.version, agent.max_steps, agent.tools) == ("created", 1, 50, [])

    agent, outcome = agent_definitions.apply(project, {**DEFINITION, "max_steps": 9}, by="cli:bob")
    assert (outcome, agent.version) == ("changed", 2)
    assert agent_definitions.apply(project, {**DEFINITION, "max_steps": 9}, by="cli:bob")[1] == "unchanged"

    stored = Agent.objects.get()
    assert (stored.version, stored.max_steps) == (2, 9)
    first, second = AuditEntry.objects.filter(object_id=str(agent.pk)).order_by("created_at", "pk")
    assert (first.action, first.actor, first.before) == ("agent.created", "cli:alice", None)
    assert (second.action, second.actor) == ("agent.changed", "cli:bob")
    assert (second.before, second.after) == ({"max_steps": 50}, {"agent_id": "player", "version": 2, "max_steps": 9})


def test_placement_is_part_of_a_definition_but_not_of_a_version(project: Project) -> None:
    placement = {"queue": "gpu", "priority": 0, "max_running": 2}
    agent, _ = agent_definitions.apply(project, DEFINITION | placement, by="cli:alice")
    assert agent.placement == placement

    # A file without placement keeps the placement that an operator set.
    assert agent_definitions.apply(project, DEFINITION, by="cli:bob")[1] == "unchanged"
    agent, outcome = agent_definitions.apply(project, {**DEFINITION, "priority": 9}, by="cli:bob")

    assert (outcome, agent.version, agent.placement) == ("changed", 1, {**placement, "priority": 9})
    [version] = AgentVersion.objects.all()
    assert version.definition.keys().isdisjoint(placement)
    last = AuditEntry.objects.filter(object_id=str(agent.pk)).latest("created_at", "pk")
    assert (last.before, last.after) == ({"priority": 0}, {"agent_id": "player", "version": 1, "priority": 9})


def test_each_change_stores_a_version_in_the_same_transaction(project: Project) -> None:
    agent, _ = agent_definitions.apply(project, DEFINITION, by="cli:alice")
    agent_definitions.apply(project, {**DEFINITION, "max_steps": 9, "instructions": "Be brief."}, by="cli:bob")
    agent_definitions.apply(project, {**DEFINITION, "max_steps": 9, "instructions": "Be brief."}, by="cli:bob")

    first, second = AgentVersion.objects.order_by("number")
    assert (first.number, first.created_by, first.changed) == (1, "cli:alice", [])
    assert (second.number, second.created_by, sorted(second.changed)) == (2, "cli:bob", ["instructions", "max_steps"])
    agent.refresh_from_db()
    assert second.definition == agent.frozen()
    assert agent_definitions.definition_at(agent, 1) == {
        name: value for name, value in first.definition.items() if name != "version"
    }
    assert agent_definitions.definition_at(agent, 3) is None


def test_a_change_based_on_an_old_version_is_refused(project: Project) -> None:
    agent_definitions.apply(project, DEFINITION, by="system", expected_version=0)
    agent_definitions.apply(project, {**DEFINITION, "max_steps": 9}, by="system", expected_version=1)

    for seen in (0, 1, 3):
        with pytest.raises(AgentChanged) as refusal:
            agent_definitions.apply(project, {**DEFINITION, "max_steps": 7}, by="system", expected_version=seen)
        assert refusal.value.data == {"version": 2}
    # The same definition again changes nothing, so a form that is submitted twice saves once.
    assert (
        agent_definitions.apply(project, {**DEFINITION, "max_steps": 9}, by="system", expected_version=1)[1]
        == "unchanged"
    )
    assert (Agent.objects.get().version, AgentVersion.objects.count()) == (2, 2)


def test_all_problems_are_reported_together(project: Project) -> None:
    wrong = {
        **DEFINITION,
        "model": "no-such-recording",
        "tools": ["nothing"],
        "max_steps": 50,
        "settings": {"budgets": {"tokens": -1}, "max_retries": "many", "root": "/proc"},
        "policies": {"on_error": ["escalate", "explode"], "on_idle": "resume", "hooks": ["none"], "odd": 1},
    }

    problems = agent_definitions.problems_of(project, wrong)

    assert [problem.data["pointer"] for problem in problems] == [
        "/policies/on_error/1/action",
        "/policies/on_idle/action",
        "/policies/hooks/0/hook",
        "/policies/odd",
        "/model",
        "/tools/0",
        "/settings/root",
        "/settings/budgets/tokens",
        "/settings/max_retries",
    ]
    with pytest.raises(InvalidAgent, match="explode"):
        agent_definitions.apply(project, wrong, by="system")
    hidden = {**DEFINITION, "settings": {"x": float("nan")}, "max_steps": "many"}
    assert [problem.data["pointer"] for problem in agent_definitions.problems_of(project, hidden)] == ["/settings/x"]
    assert [problem.data["pointer"] for problem in agent_definitions.problems_of(project, [])] == [""]  # type: ignore[arg-type]
    types = agent_definitions.problems_of(project, {"agent_id": "A B", "provider": 7, "max_steps": 0, "tools": ["no"]})
    assert [problem.data["pointer"] for problem in types] == [
        "/agent_id",
        "/provider",
        "/model",
        "/max_steps",
        "/tools/0",
    ]


def test_the_migration_stores_the_current_version_of_existing_agents(project: Project) -> None:
    agent, _ = agent_definitions.apply(project, DEFINITION, by="cli:alice")
    agent_definitions.apply(project, {**DEFINITION, "max_steps": 9}, by="cli:bob")
    AgentVersion.objects.all().delete()

    for _ in range(2):
        import_module("runs.migrations.0021_fill_agent_versions").fill(apps, None)

    agent.refresh_from_db()
    [stored] = AgentVersion.objects.all()
    assert (stored.agent, stored.number, stored.created_by, stored.created_at) == (
        agent,
        2,
        "cli:bob",
        agent.updated_at,
    )
    assert stored.definition == agent.frozen()


def test_an_omitted_field_gets_its_default(project: Project) -> None:
    agent_definitions.apply(project, {**DEFINITION, "settings": {"pace": 2}, "instructions": "Be brief."}, by="system")
    agent, outcome = agent_definitions.apply(project, DEFINITION, by="system")

    assert (outcome, agent.settings, agent.instructions) == ("changed", {}, "")


@pytest.mark.parametrize(("old", "new"), [(True, 1), (1, 1.5), ("1", 1), ([1, 2], [2, 1])])
def test_values_of_different_types_are_a_change(project: Project, old: object, new: object) -> None:
    agent_definitions.apply(project, {**DEFINITION, "settings": {"x": old}}, by="system")

    assert agent_definitions.apply(project, {**DEFINITION, "settings": {"x": new}}, by="system")[1] == "changed"


def test_the_same_id_in_two_projects_names_two_agents(project: Project) -> None:
    other = create_project("beta", "Beta", actor=SYSTEM)

    assert (
        agent_definitions.apply(project, DEFINITION, by="system")[0]
        != agent_definitions.apply(other, DEFINITION, by="system")[0]
    )


def test_the_audit_log_contains_no_secret(project: Project) -> None:
    secret = "ghp_" + "a1B2" * 9
    agent_definitions.apply(project, {**DEFINITION, "settings": {"headers": {"token": secret}}}, by="system")

    assert secret not in json.dumps(AuditEntry.objects.get(action="agent.created").after)
    assert Agent.objects.get().settings == {"headers": {"token": secret}}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"agent_id": "Not A Slug"}, "/agent_id"),
        ({"agent_id": "player\n"}, "/agent_id"),
        ({"agent_id": "01a1f883-e7e6-74e9-8166-13bd599bea4f"}, "/agent_id"),
        ({"agent_id": 7}, "/agent_id"),
        ({"model": None}, "/model"),
        ({"model": ""}, "/model"),
        ({"model": "../../etc/passwd"}, "/model"),
        ({"model": "no-such-recording"}, "/model"),
        ({"provider": "acme"}, "/provider"),
        ({"provider": "llm", "model": "gpt"}, "/model"),
        ({"tools": "recorded"}, "/tools"),
        ({"tools": ["recorded", "rm_rf"]}, "/tools/1"),
        ({"tools": [1]}, "/tools/0"),
        ({"max_steps": 0}, "/max_steps"),
        ({"max_steps": -1}, "/max_steps"),
        ({"max_steps": 2**31}, "/max_steps"),
        ({"max_steps": "50"}, "/max_steps"),
        ({"max_steps": 1.5}, "/max_steps"),
        ({"max_steps": True}, "/max_steps"),
        ({"settings": []}, "/settings"),
        ({"settings": {"pace": "fast"}}, "/settings/pace"),
        ({"settings": {"recorded_effect": "bogus"}, "tools": ["recorded"]}, "/settings"),
        ({"settings": {"x": float("nan")}}, "/settings/x"),
        ({"settings": {"x": [1, float("inf")]}}, "/settings/x/1"),
        ({"settings": {"x": 2**63}}, "/settings/x"),
        ({"settings": {"x": "a\0b"}}, "/settings/x"),
        ({"settings": {"a/b~": "\ud800"}}, "/settings/a~1b~0"),
        ({"settings": {"x": object()}}, "/settings/x"),
        ({"settings": {1: "x"}}, "/settings"),
        ({"policies": "none"}, "/policies"),
        ({"policies": ["resume"]}, "/policies"),
        ({"policies": None}, "/policies"),
        ({"instructions": "x" * 200_001}, "/instructions"),
        ({"version": 3}, "/version"),
        ({"modle": "x"}, "/modle"),
    ],
)
def test_an_error_names_the_field(change: dict[str, Any], pointer: str, project: Project) -> None:
    with pytest.raises(InvalidAgent) as refusal:
        agent_definitions.apply(project, {**DEFINITION, **change}, by="system")

    assert refusal.value.data["pointer"] == pointer
    assert len(str(refusal.value)) < 500
    assert not Agent.objects.exists()
    assert not AuditEntry.objects.filter(action__startswith="agent.").exists()


def test_a_definition_that_is_too_deep_or_too_large_or_not_an_object_is_refused(project: Project) -> None:
    big = {f"k{n}": "x" * 100_000 for n in range(6)}
    for definition in ({**DEFINITION, "settings": deep(100)}, {**DEFINITION, "settings": big}, [], "x", None):
        with pytest.raises(InvalidAgent):
            agent_definitions.apply(project, definition, by="system")  # type: ignore[arg-type]


def test_policies_are_stored_unchanged(project: Project) -> None:
    policies = {"on_error": [{"match": "rate_limited", "action": "resume", "cooldown": "60s"}]}

    assert agent_definitions.apply(project, {**DEFINITION, "policies": policies}, by="system")[0].policies == policies


def test_concurrent_calls_create_one_agent(transactional_db: None) -> None:
    project = create_project("alpha", "Alpha", actor=SYSTEM)

    def one(number: int) -> str:
        try:
            return agent_definitions.apply(project, {**DEFINITION, "max_steps": number % 2 + 1}, by="system")[1]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(one, range(16)))

    assert outcomes.count("created") == 1
    assert Agent.objects.get().version == 1 + outcomes.count("changed")
    assert AuditEntry.objects.filter(action="agent.changed").count() == outcomes.count("changed")


# --- agent apply ------------------------------------------------------------------------------------------------
def test_toml_and_json_are_equivalent(project: Project, command: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    assert command("agent", "apply", str(tmp_path / "a.toml"), "--project", "alpha") == "created\tplayer\t1\n"

    same = {**DEFINITION, "tools": ["recorded"], "max_steps": 7, "settings": {"pace": 1.5}}
    same["policies"] = {"on_error": {"action": "resume"}}
    (tmp_path / "a.json").write_text(json.dumps(same))
    done = json.loads(command("agent", "apply", str(tmp_path / "a.json"), "--project", "alpha", "--json"))
    assert (done["outcome"], done["agent_id"], done["version"], done["settings"]) == (
        "unchanged",
        "player",
        1,
        {"pace": 1.5},
    )


@pytest.mark.parametrize("text", [TOML, json.dumps(DEFINITION), "\n " + json.dumps(DEFINITION)])
def test_a_definition_can_come_from_standard_input(
    project: Project, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    assert command("agent", "apply", "-", "--project", "alpha") == "created\tplayer\t1\n"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.json", b'{"agent_id": "x",}', "not JSON"),
        ("a.json", b'{"agent_id": "x", "agent_id": "y"}', "duplicate key 'agent_id'"),
        ("a.json", b"[" * 100_000, "not JSON: nested too deeply"),
        ("a.json", b"", "not JSON"),
        ("a.json", b"[]", "$: a definition must be an object"),
        ("a.json", b"\xff\xfe", "not UTF-8 text"),
        ("a.json", b"\xef\xbb\xbf{}", "not JSON"),
        ("a.toml", b"agent_id = ", "not TOML"),
        ("a.toml", b"a = " + b"[" * 100_000, "not TOML: nested too deeply"),
        ("a.toml", TOML.replace("7", "9" * 5000).encode(), "not TOML"),
        ("a.toml", TOML.replace("1.5", "2026-01-01").encode(), "$.settings.pace: a date is not a JSON value"),
        ("a.toml", TOML.replace("1.5", "inf").encode(), "$.settings.pace: not a finite number"),
        ("a.toml", TOML.replace('["recorded"]', '["recorded", "rm"]').encode(), "$.tools[1]: Unknown tools: 'rm'"),
        ("a.conf", json.dumps({**DEFINITION, "x": 1}).encode(), "$.x: Extra inputs are not permitted"),
        ("a.conf", TOML.replace("player", "No Slug").encode(), "$.agent_id: 'No Slug' is not a valid slug"),
    ],
)
@pytest.mark.usefixtures("project")
def test_an_invalid_file_exits_with_7_and_names_the_location(
    refused: Any, tmp_path: Path, name: str, content: bytes, text: str
) -> None:
    (tmp_path / name).write_bytes(content)
    code, line = refused("agent", "apply", str(tmp_path / name), "--project", "alpha")

    assert code == 7
    assert line.startswith(f"{tmp_path / name}: ")
    assert text in line
    assert not Agent.objects.exists()


def test_an_unreadable_file_exits_with_6(project: Project, refused: Any, tmp_path: Path) -> None:
    """Row 105: a missing file, a directory, a FIFO without a writer, an endless device, a huge file."""
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(2 * 1024**3)
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo", Path("/dev/zero"), tmp_path / "huge"):
        code, line = refused("agent", "apply", str(path), "--project", "alpha")
        assert (code, str(path) in line) == (6, True)


def test_an_unknown_project_exits_with_3(db: None, refused: Any) -> None:
    assert refused("agent", "apply", "x.toml", "--project", "nowhere") == (3, "project not found: 'nowhere'")


def test_a_policy_with_an_unsupported_action_is_refused(project: Project) -> None:
    with pytest.raises(InvalidAgent, match="on_idle cannot resume") as refusal:
        agent_definitions.apply(project, {**DEFINITION, "policies": {"on_idle": {"action": "resume"}}}, by="system")

    assert (refusal.value.code, refusal.value.status) == ("invalid_policy", 422)
    assert refusal.value.data["pointer"] == "/policies/on_idle/action"
    assert not Agent.objects.exists()


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("make check", "AGENTOPS_GATE_COMMANDS"),
        ("no_such_tool", "AGENTOPS_GATE_COMMANDS"),
        ("true 'half a quote", "split into words"),
        ("ask_user", "waits for a person"),
        ("done", "waits for a person"),
        ("ledger_once", "effect at_most_once"),
        ("recorded", "AGENTOPS_GATE_COMMANDS"),
    ],
)
def test_an_invalid_gate_is_refused(project: Project, settings: Any, run: str, says: str) -> None:
    """Commands are off until the site lists the programs; a gate must be safe to repeat."""
    settings.AGENTOPS_GATE_COMMANDS = ["true"]
    assert scripted_model.ledger_once.name == "ledger_once"  # registered by the import
    rules = [{"action": "nudge"}, {"action": "gate", "run": run}]

    with pytest.raises(InvalidAgent, match=says) as refusal:
        agent_definitions.apply(project, {**DEFINITION, "policies": {"on_idle": rules}}, by="system")

    assert (refusal.value.code, refusal.value.data["pointer"]) == ("invalid_policy", "/policies/on_idle/1/run")


@pytest.mark.parametrize("run", ["true", "true --really 'and so on'", "read_file", 'read_file {"path": "x"}'])
def test_a_gate_can_be_a_tool_or_a_command_that_the_site_allows(
    project: Project, settings: Any, tmp_path: Path, run: str
) -> None:
    settings.AGENTOPS_GATE_COMMANDS = ["true"]
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    definition = {**DEFINITION, "settings": {"root": str(tmp_path)}}

    agent_definitions.apply(
        project, {**definition, "policies": {"on_dead": {"action": "gate", "run": run}}}, by="system"
    )


@pytest.mark.parametrize(
    ("allowed", "root", "tools", "says", "pointer"),
    [
        (False, "here", ["read_file"], "AGENTOPS_TOOL_ROOTS is empty", "/tools"),
        (False, "here", ["list_dir"], "AGENTOPS_TOOL_ROOTS is empty", "/tools"),
        (False, "here", [], "AGENTOPS_TOOL_ROOTS is empty", "/settings/root"),
        (True, "/proc/self", ["read_file"], "kernel directory", "/settings/root"),
        (True, "/proc/self", [], "kernel directory", "/settings/root"),
        (True, "/etc", ["read_file"], "not below a directory", "/settings/root"),
        (True, "here/../..", ["read_file"], "not below a directory", "/settings/root"),
        (True, None, ["read_file"], "no file root", "/settings/root"),
    ],
)
def test_a_root_outside_the_allowed_directories_is_refused(
    project: Project,
    settings: Any,
    tmp_path: Path,
    *,
    allowed: bool,
    root: Any,
    tools: list[str],
    says: str,
    pointer: str,
) -> None:
    (tmp_path / "here").mkdir()
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path / "here")] if allowed else []
    given = {} if root is None else {"root": root.replace("here", str(tmp_path / "here"))}

    with pytest.raises(InvalidAgent, match=says) as refusal:
        agent_definitions.apply(project, {**DEFINITION, "tools": tools, "settings": given}, by="system")

    assert refusal.value.data["pointer"] == pointer
    assert not Agent.objects.filter(project=project).exists()


def test_a_gate_with_a_file_tool_and_no_tool_roots_is_refused(project: Project) -> None:
    policy = {"on_dead": {"action": "gate", "run": 'read_file {"path": "x"}'}}

    with pytest.raises(InvalidAgent, match="AGENTOPS_TOOL_ROOTS") as refusal:
        agent_definitions.apply(project, {**DEFINITION, "policies": policy}, by="system")

    assert refusal.value.data["pointer"] == "/policies/on_dead/run"


def test_recover_is_an_alias_of_resume(project: Project) -> None:
    agent, _ = agent_definitions.apply(project, {**DEFINITION, "policies": {"on_dead": "recover"}}, by="system")

    assert policies.parse(agent.policies).rules[policies.Trigger.ON_DEAD][0].action == "resume"
