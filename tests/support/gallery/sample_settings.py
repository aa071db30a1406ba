"""The contents of the sample site's settings pages: agents with versions, rules, prices, keys, members, old runs."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from agentops.accounts.access import SYSTEM
from agentops.accounts.invitations import invite, url_path
from agentops.accounts.keys import create_key
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Project, Role
from agentops.accounts.notifications import notify
from agentops.accounts.redaction_rules import rule_changes
from runs.actions import agent_definitions, approvals, model_prices
from runs.external import ingest_counts
from runs.external.uploads import execution, import_claims, intake
from runs.external.uploads.intake import Upload
from runs.models import AgentRun, FileImport
from tests.support.accounts import verify_address
from tests.support.factories import drive, make_run

REVIEWER: dict[str, Any] = {
    "agent_id": "reviewer", "provider": "fixture", "model": "claude-code-5c", "instructions": "Review.\nBe brief.",
    "tools": ["recorded"], "settings": {"budgets": {"tokens": 100_000}, "tool_output_limit": 9000},
    "policies": {
        "on_error": [{"match": "rate_limited", "action": "resume"}, "escalate"], "on_prompt": "escalate",
        "hooks": [{"hook": "command_guard", "tools": "shell", "options": {"allow": ["git"]}}],
        "approvals": [{"tools": "deploy", "arguments": {"environment": "^prod"}, "action": "ask"}],
    },
}  # fmt: skip
#: A secret that the project redacts.
SECRET = "correct horse battery"


def make_reviewer(project: Project) -> AgentRun:
    """Create a run that exceeded its budget, of an agent with two versions and every kind of policy."""
    agent, _ = agent_definitions.apply(project, REVIEWER, by="user:ada")
    run = drive(make_run(agent))
    agent_definitions.apply(project, {**REVIEWER, "instructions": "Review.\nBe precise."}, by="user:bob")
    return run


def make_rules(project: Project) -> None:
    """Create an approval rule, a price and a secret."""
    rule = {"tools": "deploy", "arguments": {"environment": "^prod"}, "action": "ask"}
    approvals.set_rules("test", project, [rule])
    model_prices.set_price(project, {"model": "openai-chat:gpt-5", "input": "1.1", "output": "9"}, by="test")
    rule_changes.add_secret(project, "billing_password", SECRET, actor="test")


def make_uploads(project: Project) -> list[FileImport]:
    """Create uploads with long file names: one imported, one refused, one in progress, one pending."""
    contents = (b'[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]', b"{}", b"[]", b"[]")
    files = [Upload(f"{'long-name-' * 20}.json", io.BytesIO(content), len(content)) for content in contents]
    uploads = intake.store(SYSTEM, project, files)
    assert execution.import_next()
    assert execution.import_next()
    taken = import_claims.take()
    assert taken is not None
    import_claims.update(taken, events=100)
    return uploads


def make_keys(project: Project) -> None:
    """Create a key with all scopes and a long name, and a runner's key with request counts."""
    create_key(project, name="a long name " * 10, scopes=["read", "write", "ingest"], actor="user:ada")
    key, _ = create_key(project, name="A runner with a long name", scopes=["ingest"], actor=SYSTEM)
    outcomes = {"accepted": 412, "duplicate": 9, "invalid_event": 3, "invalid_json": 1200}
    ingest_counts.count(project.pk, f"key:{key.prefix}", outcomes)
    ingest_counts.flush()


def make_members(project: Project) -> str:
    """Create the member bob and an invited person. Return the path of the invitation."""
    bob = verify_address(User.objects.create_user("bob", email="bob@example.org"))
    add_member(project, bob, Role.VIEWER, actor=SYSTEM)
    return url_path(invite(project, "cleo@example.org", "viewer", actor="user:ada"))


def make_notice(run: AgentRun) -> None:
    """Create an unread notification with long words."""
    text = "Wort" * 400
    notify(run.project_id, kind="escalated", title="Superkalifragilistisch" * 9, text=text, run_id=run.pk)


def make_old(run: AgentRun) -> None:
    """Move the run's end 40 days into the past, so that a retention period of 30 days would delete it."""
    ended = timezone.now() - timedelta(days=40)
    AgentRun.objects.filter(pk=run.pk).update(created_at=ended, queued_at=ended, completed_at=ended)
