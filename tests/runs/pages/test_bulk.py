"""Test resuming many runs of the list: the preview and the result of each run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import AuditEntry, Project, Role
from runs.actions import run_actions
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.pages.runs import bulk_actions
from runs.statuses import RunStatus
from tests.support.factories import make_agent, make_person, make_project, make_run

URL = "/p/alpha/runs/resume"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


def client_of(project: Project, role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(make_person(project, role))
    return client


def paused(project: Project, title: str = "Paused", **fields: Any) -> AgentRun:
    run = make_run(make_agent(project), title=title)
    run_actions.pause("test", run)
    AgentRun.objects.filter(pk=run.pk).update(**fields)
    return AgentRun.objects.get(pk=run.pk)


def queued(project: Project, title: str = "Queued") -> AgentRun:
    return make_run(make_agent(project), title=title)


def send(client: Client, *runs: AgentRun, **form: Any) -> str:
    answer = client.post(URL, {"id": [str(run.pk) for run in runs], **form})
    assert answer.status_code == 200
    return answer.content.decode()


def heading(html: str) -> str:
    found = re.search(r'<h2 class="bulk-title"[^>]*>([^<]*)</h2>', html)
    assert found is not None
    return found[1]


def hidden(html: str, name: str) -> list[str]:
    return re.findall(rf'type="hidden" name="{name}" value="([^"]*)"', html)


def confirmed(client: Client, html: str, **form: Any) -> str:
    """Submit the form of the preview."""
    given = {name: hidden(html, name) for name in ("id", "skipped", "kill")}
    answer = client.post(URL, {**{name: values for name, values in given.items() if values}, "do": "resume", **form})
    assert answer.status_code == 200
    return answer.content.decode()


# --- Preview ------------------------------------------------------------------------------------------------------


@pytest.mark.breaks_invariants("a run is said to have made steps")
def test_the_preview_lists_resumable_runs_and_reasons_for_the_others(project: Project, settings: Any) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 60
    one, capped, live = paused(project, "One"), paused(project, "Capped", step_count=60), queued(project, "Live")
    gone_on = paused(project, "Gone on")
    new = run_actions.resume("test", gone_on).run
    before = AgentRun.objects.count()
    html = send(client_of(project), one, capped, live, gone_on)

    assert heading(html) == "Resume 1 run?"
    assert hidden(html, "id") == [str(one.pk)]
    assert set(hidden(html, "skipped")) == {str(run.pk) for run in (capped, live, gone_on)}
    assert "The lineage has used all of its 60 steps." in html
    assert "Only paused runs can be resumed; this one is queued." in html
    assert f'href="/runs/{new.pk}"' in html
    # The preview changes nothing.
    assert AgentRun.objects.count() == before
    assert AgentRun.objects.get(pk=one.pk).state is RunStatus.PAUSED
    assert AuditEntry.objects.filter(action="run.resumed").count() == 1


def test_an_empty_selection_shows_a_hint(project: Project) -> None:
    html = send(client_of(project))

    assert heading(html) == "Resume 0 runs?"
    assert "Select runs in the list" in html
    assert "<button" not in html.partition('class="bulk-title"')[2].partition("</main>")[0]


def test_the_preview_can_be_loaded_into_a_dialog(project: Project) -> None:
    one = paused(project)
    answer = client_of(project).post(URL, {"id": str(one.pk)}, headers={"HX-Request": "true"})
    html = answer.content.decode()

    assert heading(html) == "Resume 1 run?"
    assert "<html" not in html


def test_titles_stay_text(project: Project) -> None:
    client = client_of(project)
    html = send(client, paused(project, HOSTILE))

    assert HOSTILE not in html
    assert HOSTILE not in confirmed(client, html)
    assert HOSTILE not in client.get("/p/alpha/runs").content.decode()


# --- Resume -------------------------------------------------------------------------------------------------------


def test_the_runs_of_the_preview_are_resumed(project: Project) -> None:
    one, two, live = paused(project, "One"), paused(project, "Two"), queued(project, "Live")
    client = client_of(project)
    html = confirmed(client, send(client, one, two, live), message="Go on.\r\nPlease.")

    assert heading(html) == "Resumed 2 runs"
    for run in (one, two):
        new = AgentRun.objects.get(resumed_from=run)
        assert new.prompt == "Go on.\nPlease."
        assert f'href="/runs/{new.pk}"' in html
    assert "Only paused runs can be resumed; this one is queued." in html
    entries = AuditEntry.objects.filter(action="run.resumed")
    assert {entry.actor[:5] for entry in entries} == {"user:"}
    assert entries.count() == 2


def test_a_form_submitted_twice_resumes_once(project: Project) -> None:
    one = paused(project)
    client = client_of(project)
    preview = send(client, one)
    first, second = (confirmed(client, preview, message="Once.") for _ in range(2))

    new = AgentRun.objects.get(resumed_from=one)
    assert heading(first) == "Resumed 1 run"
    assert heading(second) == "No run was resumed"
    assert "Already resumed" in second
    assert f'href="/runs/{new.pk}"' in second
    assert AuditEntry.objects.filter(action="run.resumed").count() == 1


def test_a_failure_does_not_stop_other_runs(project: Project) -> None:
    one, ended, two = paused(project, "One"), paused(project, "Ended"), paused(project, "Two")
    client = client_of(project)
    preview = send(client, one, ended, two)
    run_actions.stop("test", ended)
    html = confirmed(client, preview)

    assert heading(html) == "Resumed 2 runs"
    assert "Only paused runs can be resumed; this one is stopped." in html


def test_runs_skipped_in_the_preview_are_not_resumed(project: Project) -> None:
    """The user confirmed only the listed runs."""
    one, late = paused(project, "One"), queued(project, "Late")
    client = client_of(project)
    preview = send(client, one, late)
    run_actions.pause("test", late)
    html = confirmed(client, preview)

    assert heading(html) == "Resumed 1 run"
    assert "could not be resumed when the preview was shown" in html
    assert AgentRun.objects.get(pk=late.pk).state is RunStatus.PAUSED


@pytest.mark.parametrize("message", ["  ", "x" * (inbox.MAX_MESSAGE + 1)], ids=["spaces", "too long"])
def test_an_invalid_message_is_refused_for_all_runs(message: str, project: Project) -> None:
    one = paused(project)
    client = client_of(project)
    html = confirmed(client, send(client, one), message=message)

    assert 'role="alert"' in html
    assert hidden(html, "id") == [str(one.pk)]
    assert AgentRun.objects.get(pk=one.pk).state is RunStatus.PAUSED


# --- Active runs --------------------------------------------------------------------------------------------------


def test_active_runs_are_resumed_on_request(project: Project) -> None:
    one, live = paused(project, "One"), queued(project, "Live")
    client = client_of(project, Role.ADMIN)
    html = send(client, one, live)
    assert "Include 1 active run…" in html

    html = send(client, one, live, kill="1", do="preview")
    assert heading(html) == "Resume 2 runs?"
    assert "Stops the worker of 1 active run" in html
    html = confirmed(client, html)

    assert heading(html) == "Resumed 2 runs"
    assert AgentRun.objects.get(pk=live.pk).state is RunStatus.RESUMED
    assert AuditEntry.objects.filter(action="run.killed").count() == 1


def test_the_message_is_kept_when_active_runs_are_included(project: Project) -> None:
    one, capped, live = paused(project, "One"), queued(project, "Other"), queued(project, "Live")
    run_actions.stop("test", capped)
    client = client_of(project, Role.ADMIN)
    preview = send(client, one, capped, live)
    form = {name: hidden(preview, name) for name in ("id", "skipped")}
    html = client.post(URL, {**form, "message": "Go on.\n<all> of you", "do": "include"}).content.decode()

    assert heading(html) == "Resume 2 runs?"
    assert "Go on.\n&lt;all&gt; of you</textarea>" in html
    assert "Stops the worker of 1 active run" in html
    assert hidden(html, "skipped") == [str(capped.pk)]
    assert client_of(project).post(URL, {**form, "do": "include"}).status_code == 403


def test_active_runs_alone_can_be_included(project: Project) -> None:
    live = queued(project, "Live")
    client = client_of(project, Role.ADMIN)
    preview = send(client, live)
    assert "Include 1 active run…" in preview

    html = client.post(URL, {"skipped": hidden(preview, "skipped"), "do": "include"}).content.decode()

    assert heading(html) == "Resume 1 run?"


def test_only_admins_may_include_active_runs(project: Project) -> None:
    live = queued(project)
    client = client_of(project)

    assert "active run" not in send(client, live)
    for do in ("preview", "resume"):
        assert client.post(URL, {"id": str(live.pk), "kill": "1", "do": do}).status_code == 403
    assert AgentRun.objects.get(pk=live.pk).state is RunStatus.QUEUED


# --- All matching runs ----------------------------------------------------------------------------------------------


def test_all_matching_runs_are_the_paused_ones(project: Project) -> None:
    mine, other = paused(project, "Fix the bug"), paused(project, "Something else")
    queued(project, "Fix it later")
    done = queued(project, "Fixed")
    run_actions.stop("test", done)
    client = client_of(project, Role.ADMIN)

    html = client.post(URL, {"every": "1", "q": "fix"}).content.decode()
    assert hidden(html, "id") == [str(mine.pk)]
    html = client.post(URL, {"every": "1"}).content.decode()
    assert hidden(html, "id") == [str(mine.pk), str(other.pk)]
    html = client.post(URL, {"every": "1", "status": "completed"}).content.decode()
    assert hidden(html, "id") == []


def test_only_admins_may_resume_all_matching_runs(project: Project) -> None:
    paused(project)
    client = client_of(project)

    assert client.post(URL, {"every": "1"}).status_code == 403
    assert "Resume all matching paused" not in client.get("/p/alpha/runs").content.decode()
    assert "Resume all matching paused" in client_of(project, Role.ADMIN).get("/p/alpha/runs").content.decode()


def test_the_number_of_runs_is_limited(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "MAX_RUNS", 2)
    runs = [paused(project, str(number)) for number in range(3)]
    client = client_of(project, Role.ADMIN)
    html = client.post(URL, {"every": "1"}).content.decode()

    assert hidden(html, "id") == [str(run.pk) for run in runs[:2]]
    assert "Only the first 2 matching runs are included" in html
    assert client.post(URL, {"id": [str(run.pk) for run in runs]}).status_code == 400


# --- Isolation, bad input, cost -----------------------------------------------------------------------------------


def test_a_run_of_another_project_counts_as_missing(project: Project) -> None:
    theirs, ours = paused(make_project("beta"), "secret"), paused(project)
    client = client_of(project)
    html = send(client, theirs, ours)

    assert "secret" not in html
    assert "1 selected run no longer exists." in html
    confirmed(client, html, id=[str(theirs.pk), str(ours.pk)])
    assert AgentRun.objects.get(pk=theirs.pk).state is RunStatus.PAUSED


@pytest.mark.parametrize("form", [{"id": "x"}, {"id": "\0"}, {"skipped": "1"}], ids=["id", "nul", "skipped"])
def test_an_invalid_id_is_refused(form: dict[str, str], project: Project) -> None:
    assert client_of(project).post(URL, form).status_code == 400


def test_viewers_see_no_checkboxes(project: Project) -> None:
    paused(project)

    assert 'form="bulk"' not in client_of(project, Role.VIEWER).get("/p/alpha/runs").content.decode()
    html = client_of(project).get("/p/alpha/runs").content.decode()
    assert 'form="bulk"' in html
    rows = re.search(r'hx-get="([^"]*rows[^"]*)"', html)
    assert rows is not None
    assert "boxes=1" in rows[1]


def test_the_query_count_does_not_grow_with_checkboxes(project: Project) -> None:
    def queries(client: Client) -> int:
        with CaptureQueriesContext(connection) as asked:
            assert client.get("/p/alpha/runs").status_code == 200
        return len(asked)

    client = client_of(project, Role.ADMIN)
    few = queries(client)
    for _ in range(5):
        paused(project)

    assert queries(client) == few


# --- Compare --------------------------------------------------------------------------------------------------------


def compare(client: Client, *runs: AgentRun) -> str:
    """Return the URL to which comparing the selected runs redirects."""
    answer = client.post("/p/alpha/runs/compare", {"id": [str(run.pk) for run in runs], "status": "queued"})
    assert answer.status_code == 303
    return str(answer["Location"])


def test_two_selected_runs_are_compared(project: Project) -> None:
    """The older run comes first, regardless of the order of the rows."""
    older, newer = queued(project, "One"), queued(project, "Two")
    client = client_of(project)
    assert "Compare selected" in client.get("/p/alpha/runs?all=1").content.decode()

    location = compare(client, newer, older)

    assert location == f"/compare?a={older.pk}&b={newer.pk}"
    assert client.get(location).status_code == 200


def test_only_two_runs_can_be_compared(project: Project) -> None:
    """Redirect to the list with its filters. A run of another project does not count as selected."""
    client, one = client_of(project), queued(project)
    foreign = queued(make_project("beta"))

    assert compare(client, one, foreign) == "/p/alpha/runs?status=queued"
    assert "Not compared: select two runs, not 1." in client.get("/p/alpha/runs").content.decode()
    assert client.post("/p/beta/runs/compare", {"id": [str(one.pk)]}).status_code == 404
