"""Test deleting a project with the page, the API and the command: all list the affected rows and require the slug."""

from __future__ import annotations

import html
import io
import json
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import archive_project, unarchive_project
from agentops.accounts.models import AuditEntry, Project, Role
from runs.upkeep import project_removal
from tests.support.factories import drive, make_agent, make_person, make_project, make_run, with_key

PAGE, API = "/p/alpha/settings/delete", "/api/projects/alpha"


@pytest.fixture
def project(db: None) -> Project:
    project = make_project("alpha")
    for _ in range(2):
        drive(make_run(make_agent(project)))
    return archive_project(project, actor=SYSTEM)


def client_of(project: Project, role: Role = Role.ADMIN) -> Client:
    client = Client()
    client.force_login(make_person(project, role))
    return client


def text_of(answer: Any) -> str:
    return " ".join(html.unescape(re.sub("<[^>]*>", "", answer.content.decode())).split())


def is_hidden(project: Project) -> bool:
    return project_removal.pending().filter(pk=project.pk).exists()


def deletions() -> list[tuple[str, str]]:
    return [(entry.actor, entry.door) for entry in AuditEntry.objects.filter(action="project.deleted")]


# --- The page -----------------------------------------------------------------------------------------------------


def test_the_page_lists_affected_rows_and_requires_the_slug(project: Project) -> None:
    admin = client_of(project)

    assert f'href="{PAGE}"' in admin.get("/p/alpha/settings").content.decode()
    page = text_of(admin.get(PAGE))
    for words in ("This cannot be undone.", "2 runs", "2 agents", "1 member", "Enter alpha to confirm"):
        assert words in page
    assert "flow run" not in page
    assert admin.get(f"{PAGE}?slug=alpha").status_code == 200
    for wrong in ("", "Alpha", "beta"):
        refused = admin.post(PAGE, {"slug": wrong})
        assert refused.status_code == 422
        assert "To confirm, enter the slug alpha." in text_of(refused)
    assert not is_hidden(project)

    answer = admin.post(PAGE, {"slug": " alpha "})

    assert (answer.status_code, answer["Location"]) == (303, "/projects")
    told = text_of(admin.get(answer["Location"]))
    assert f"{project.name} is deleted. Its rows are removed in the background." in told
    assert is_hidden(project)
    assert [door for _, door in deletions()] == ["page"]
    assert admin.get(PAGE).status_code == 404


def test_the_page_shows_why_deletion_is_refused(project: Project) -> None:
    unarchive_project(project, actor=SYSTEM)
    admin = client_of(project)

    assert PAGE not in admin.get("/p/alpha/settings").content.decode()
    page = admin.get(PAGE)
    assert "Only an archived project can be deleted: archive it first." in text_of(page)
    assert b'name="slug"' not in page.content
    refused = admin.post(PAGE, {"slug": "alpha"})
    assert refused.status_code == 409
    assert "archive it first" in text_of(refused)
    assert not is_hidden(project)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_only_admins_may_delete(role: Role, project: Project) -> None:
    member, outsider = client_of(project, role), client_of(make_project("beta"))
    key = Client(headers=with_key(project, "read", "write", "ingest", "secrets"))

    assert member.get(PAGE).status_code == member.post(PAGE, {"slug": "alpha"}).status_code == 403
    assert outsider.get(PAGE).status_code == outsider.post(PAGE, {"slug": "alpha"}).status_code == 404
    for client, status in ((member, 403), (outsider, 404), (key, 403), (Client(), 401)):
        assert client.get(f"{API}/deletion").status_code == status
        assert client.delete(f"{API}?confirm=alpha").status_code == status
    assert (is_hidden(project), deletions()) == (False, [])


# --- The API ------------------------------------------------------------------------------------------------------


def test_the_api_counts_affected_rows_and_deletes(project: Project) -> None:
    admin = client_of(project)
    preview = admin.get(f"{API}/deletion").json()
    counts = preview["counts"]

    assert preview["refusal"] is None
    assert {name: counts[name] for name in ("runs", "flow_runs", "agents", "members")} == {
        "runs": 2,
        "flow_runs": 0,
        "agents": 2,
        "members": 1,
    }
    assert counts["events"] > 20
    for query in ("", "?confirm=", "?confirm=Alpha", f"?confirm={project.pk}"):
        answer = admin.delete(f"{API}{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, "not_confirmed"), query
    assert admin.delete(f"{API}?confirm=alpha&force=1").json()["code"] == "unknown_parameter"
    assert admin.get(f"{API}?confirm=alpha").status_code == 400

    answer = admin.delete(f"{API}?confirm=alpha")

    assert (answer.status_code, answer.json()) == (202, {"counts": counts})
    assert is_hidden(project)
    assert [door for _, door in deletions()] == ["api"]
    assert admin.delete(f"{API}?confirm=alpha").status_code == 404


def test_the_api_reports_why_deletion_is_refused(project: Project) -> None:
    unarchive_project(project, actor=SYSTEM)
    admin = client_of(project)
    code = "project_not_archived"

    assert admin.get(f"{API}/deletion").json()["refusal"]["code"] == code
    answer = admin.delete(f"{API}?confirm=alpha")
    assert (answer.status_code, answer.json()["code"]) == (409, code)


# --- The command --------------------------------------------------------------------------------------------------


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("project", "delete", *words, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_the_command_counts_and_deletes(project: Project) -> None:
    counted = dict(line.split("\t") for line in run("alpha", "--dry-run").splitlines())
    as_json = json.loads(run("alpha", "--dry-run", "--json"))

    assert (counted["runs"], counted["api keys"]) == ("2", "0")
    assert (as_json["slug"], as_json["counts"]["runs"], as_json["refusal"]) == ("alpha", 2, None)
    assert not is_hidden(project)

    deleted = json.loads(run(str(project.pk), "--confirm", "alpha", "--json"))

    assert deleted == {"slug": "alpha", "counts": as_json["counts"]}
    assert not Project._base_manager.filter(pk=project.pk).exists()
    assert [door for _, door in deletions()] == ["command"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["alpha"], 5, "this cannot be undone: pass --confirm alpha"),
        (["alpha", "--confirm", "beta"], 7, "to confirm, enter the slug alpha"),
        (["nowhere", "--confirm", "nowhere"], 3, "project not found"),
    ],
)
def test_the_command_refuses(words: list[str], code: int, text: str, project: Project) -> None:
    with pytest.raises(CommandError, match=text) as refused:
        run(*words)

    assert refused.value.returncode == code
    assert not is_hidden(project)


def test_the_command_prompts_on_a_terminal(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("beta\nalpha\n"))
    with pytest.raises(CommandError, match="to confirm, enter the slug alpha"):
        run("alpha")
    assert run("alpha") == "deleted alpha\n"


def test_the_command_reports_why_deletion_is_refused(project: Project) -> None:
    unarchive_project(project, actor=SYSTEM)

    assert "cannot be deleted now: only an archived project" in run("alpha", "--dry-run")
    with pytest.raises(CommandError, match="archive it first") as refused:
        run("alpha", "--confirm", "alpha")
    assert refused.value.returncode == 5
