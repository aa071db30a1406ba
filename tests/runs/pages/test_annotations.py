"""Test labels, notes, saved views, exports and share links: on pages, in the API, and after retention."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts import memberships, redaction_cache, redaction_changes
from agentops.accounts.models import AuditEntry, Project, Role
from runs.actions import run_annotations
from runs.exports import report_cache
from runs.models import AgentRun, AgentRunMessage, RunNote, SavedView, ShareLink
from runs.upkeep import retention
from runs.upkeep.retention import RemovalReport
from tests.support.factories import drive, make_agent, make_person, make_project, make_run, with_key

pytestmark = pytest.mark.django_db

SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
HOSTILE = '</pre></style><script>alert(1)</script><img src=x onerror=alert(1)><a href="javascript:x">'


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def run(project: Project) -> AgentRun:
    return drive(make_run(make_agent(project), title="Count the files"))


def client_of(project: Project, role: Role) -> Client:
    client = Client()
    client.force_login(make_person(project, role))
    return client


def text_of(answer: Any) -> str:
    assert answer.status_code == 200, answer
    return b"".join(answer).decode()


def test_labels_are_added_removed_filtered_and_audited(project: Project, run: AgentRun) -> None:
    operator, page = client_of(project, Role.OPERATOR), f"/runs/{run.pk}"
    other = make_run(make_agent(project))
    for label in ("nightly", f"token {SECRET}", "nightly"):
        operator.post(f"{page}/labels", {"add": label})
    operator.post("/p/alpha/runs/label", {"id": [str(run.pk), str(other.pk)], "new_label": "both", "q": "files"})
    run.refresh_from_db()

    assert (run.labels[0], run.labels[2], len(run.labels)) == ("nightly", "both", 3)
    assert SECRET not in json.dumps(run.labels)
    for query, found in (("label=nightly", {run.pk}), ("label=both", {run.pk, other.pk}), ("label=night", set())):
        rows = re.findall(r'<tr id="run-([^"]*)"', operator.get(f"/p/alpha/runs?{query}").content.decode())
        assert set(rows) == {str(pk) for pk in found}, query
    assert "<bdi>nightly</bdi>" in operator.get(page).content.decode()

    operator.post(f"{page}/labels", {"remove": "nightly"})
    entries = AuditEntry.objects.filter(action="run.labels_changed", object_id=str(run.pk)).order_by("pk")
    assert len(entries) == 4  # the second "nightly" changed nothing
    assert "nightly" not in entries[3].after["labels"]
    operator.post(f"{page}/labels", {"add": "x" * 65})
    assert "Labels not changed: a label must be one line of 1 to 64 char" in operator.get(page).content.decode()


def test_labelling_returns_to_the_same_page_of_the_list(project: Project, run: AgentRun) -> None:
    operator, place = client_of(project, Role.OPERATOR), f"{10**15}-{run.pk.hex}"
    body = operator.get(f"/p/alpha/runs?q=files&after={place}").content.decode()
    form = {"id": [str(run.pk)], "new_label": "nightly", "q": "files", "after": place}

    assert f'<input type="hidden" name="after" value="{place}">' in body
    assert operator.post("/p/alpha/runs/label", form)["Location"] == f"/p/alpha/runs?q=files&after={place}"


def test_the_api_changes_labels(project: Project, run: AgentRun) -> None:
    url = f"/api/projects/alpha/agent-runs/{run.pk}"
    writer = Client(headers=with_key(project, "write"))

    def patch(**body: Any) -> Any:
        return writer.patch(url, json.dumps(body), content_type="application/json")

    assert patch(labels=["a", "b"]).json()["labels"] == ["a", "b"]
    assert patch(add_labels=["c"], remove_labels=["a"]).json()["labels"] == ["b", "c"]
    assert patch(labels=["x"], add_labels=["y"]).status_code == 422
    assert patch().status_code == 422
    run_annotations.change_labels(run.pk, by="test", replace=[str(n) for n in range(32)])
    assert patch(add_labels=["one too many"]).json()["code"] == "invalid_annotation"


def test_only_the_author_may_edit_a_note(project: Project, run: AgentRun) -> None:
    author, other, admin = (client_of(project, role) for role in (Role.OPERATOR, Role.OPERATOR, Role.ADMIN))
    page = f"/runs/{run.pk}"
    author.post(f"{page}/notes", {"text": f"Look at {HOSTILE} and {SECRET}\r\nsecond line"})
    note = RunNote.objects.get()
    own = f"{page}/notes/{note.pk}"

    shown = other.get(page).content.decode()
    assert "<script>alert" not in shown
    assert SECRET not in shown + note.text
    assert "second line" in shown
    assert "Save note" not in shown
    other.post(own, {"text": "mine"})
    other.post(own, {"do": "delete"})
    note.refresh_from_db()
    assert note.edited_at is None
    author.post(own, {"text": "changed"})
    note.refresh_from_db()
    assert (note.text, note.edited_at is None) == ("changed", False)
    admin.post(own, {"text": "mine"})
    note.refresh_from_db()
    assert note.text == "changed"
    admin.post(own, {"do": "delete"})
    assert not RunNote.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="run.note").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["run.note_added", "run.note_edited", "run.note_deleted"]


def test_views_belong_to_a_user_who_can_have_one_default(project: Project, run: AgentRun) -> None:
    operator, other = client_of(project, Role.OPERATOR), client_of(project, Role.VIEWER)
    save = "/p/alpha/runs/views"
    query = "status=failed&sort=cost&columns=agent,cost&before=1-" + "0" * 32
    operator.post(save, {"name": "Failures", "query": query, "shared": "1", "default": "1"})
    operator.post(save, {"name": "Mine", "query": "label=x", "default": "1"})
    failures, mine = SavedView.objects.order_by("pk")

    assert (failures.query, failures.is_default) == ("status=failed&sort=cost&columns=agent%2Ccost", False)
    assert operator.get("/p/alpha/runs")["Location"] == "/p/alpha/runs?label=x"
    everything = operator.get("/p/alpha/runs?all=1").content.decode()
    assert "Failures" in everything
    assert 'href="/p/alpha/runs?all=1"' in everything
    seen = other.get("/p/alpha/runs").content.decode()
    assert "Failures" in seen
    assert "Mine" not in seen
    for view in (failures, mine):
        assert other.post(f"{save}/{view.pk}", {"do": "delete"}).status_code == 404
    assert other.post(save, {"name": "Ours", "query": "", "shared": "1"}).status_code == 303
    assert not SavedView.objects.filter(name="Ours").exists()
    operator.post(f"{save}/{mine.pk}", {"name": "Failures"})  # taken
    operator.post(f"{save}/{mine.pk}", {"name": "Renamed"})
    mine.refresh_from_db()
    assert (mine.name, mine.is_default, mine.query) == ("Renamed", False, "label=x")
    assert operator.post(save, {"name": "Bad", "query": "sort=magic"}).status_code == 400


def test_without_the_right_to_share_an_owner_cannot_change_a_shared_view(project: Project) -> None:
    """The owner was an operator and is now a viewer."""
    owner = make_person(project, Role.OPERATOR)
    client = Client()
    client.force_login(owner)
    client.post("/p/alpha/runs/views", {"name": "Failures", "query": "status=failed", "shared": "1"})
    view = SavedView.objects.get()
    memberships.change_role(project, owner, Role.VIEWER, actor="test")
    url = f"/api/projects/alpha/saved-views/{view.pk}"

    for changes in ({"query": "status=completed"}, {"name": "All is well"}):
        refused = client.patch(url, json.dumps(changes), content_type="application/json")
        assert (refused.status_code, refused.json()["code"]) == (403, "role_required")
    client.post(f"/p/alpha/runs/views/{view.pk}", {"name": "All is well", "shared": "1"})
    view.refresh_from_db()
    assert (view.name, view.query) == ("Failures", "status=failed")
    for mine in ({"is_default": True}, {"is_shared": False}, {"query": "status=completed"}):
        assert client.patch(url, json.dumps(mine), content_type="application/json").status_code == 200


@pytest.mark.breaks_invariants("an answer that is replaced by another text")
def test_a_run_is_exported_in_every_format(project: Project, run: AgentRun) -> None:
    message = AgentRunMessage.objects.filter(run=run, role="assistant").order_by("position")[0]
    parts = [{"part_kind": "text", "content": f"{HOSTILE} {SECRET} \u202e"}]
    AgentRunMessage.objects.filter(pk=message.pk).update(content={**message.content, "parts": parts})
    AgentRun.objects.filter(pk=run.pk).update(title=f"=cmd()|{HOSTILE}"[:200], labels=["nightly"])
    viewer, base = client_of(project, Role.VIEWER), f"/runs/{run.pk}/export"
    client_of(project, Role.OPERATOR).post(f"/runs/{run.pk}/notes", {"text": "A note."})

    names = ("json", "events", "messages", "tool-calls", "html")
    files = {name: text_of(viewer.get(f"{base}/{name}")) for name in names}

    assert not any(SECRET in text for text in files.values())
    whole = json.loads(files["json"])
    assert (whole["format"], whole["run"]["id"]) == ("agentops.run/1", str(run.pk))
    assert whole["notes"][0]["text"] == "A note."
    assert len(whole["messages"]) == run.messages.count()
    assert len(whole["tool_calls"]) == run.tool_calls.count() > 0
    events = [json.loads(line) for line in files["events"].splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(whole["events"]) + 1))
    messages = list(csv.DictReader(io.StringIO(files["messages"])))
    assert [int(row["position"]) for row in messages] == sorted(int(row["position"]) for row in messages)
    assert len(messages) == len(whole["messages"])
    assert len(list(csv.DictReader(io.StringIO(files["tool-calls"])))) == len(whole["tool_calls"])
    report = files["html"]
    assert "<script" not in report.lower()
    assert not re.search(r"<(?:img|link|iframe|object|a)\b", report)
    assert "default-src &#x27;none&#x27;; style-src &#x27;sha256-" in report
    assert "A note." in report
    assert viewer.get(f"{base}/pdf").status_code == 400


def test_a_list_is_exported_with_its_filters(project: Project, run: AgentRun) -> None:
    agent = make_agent(project)
    titles = [f"{sign}SUM(A1)" for sign in ("=", "+", "-", "@", "\n=", " \r\n\t+", "\N{FULLWIDTH EQUALS SIGN}")]
    for title in titles:
        AgentRun.objects.filter(pk=make_run(agent).pk).update(title=title)
    reader = Client(headers=with_key(project, "read"))
    page = client_of(project, Role.VIEWER)

    rows = list(csv.DictReader(io.StringIO(text_of(page.get("/p/alpha/runs/export/csv?status=queued")))))
    lines = text_of(reader.get("/api/projects/alpha/agent-runs/export?format=jsonl&q=SUM")).splitlines()

    assert [row["title"] for row in rows] == [f"'{title}" for title in reversed(titles)]
    assert [json.loads(line)["title"] for line in lines] == list(reversed(titles))
    assert reader.get("/api/projects/alpha/agent-runs/export?bogus=1").status_code == 400


def test_a_share_link_opens_the_report_until_it_expires_or_is_revoked(project: Project, run: AgentRun) -> None:
    admin, nobody = client_of(project, Role.ADMIN), Client()
    admin.post(f"/runs/{run.pk}/notes", {"text": "For us only."})
    for role in (Role.VIEWER, Role.OPERATOR):
        assert client_of(project, role).post(f"/runs/{run.pk}/share", {"days": "1"}).status_code == 403
    admin.post(f"/runs/{run.pk}/share", {"days": "2"})
    link = ShareLink.objects.get()
    url = f"/shared/{run_annotations.token_of(link)}"
    assert url in admin.get(f"/runs/{run.pk}").content.decode()
    assert url not in client_of(project, Role.OPERATOR).get(f"/runs/{run.pk}").content.decode()

    answer = nobody.get(url)
    report = text_of(answer)
    assert "Count the files" in report
    assert "For us only." not in report
    assert (answer["Referrer-Policy"], answer["Cache-Control"].split(",")[0]) == ("no-referrer", "max-age=0")
    assert answer["X-Robots-Tag"].startswith("noindex")
    assert answer["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
    link.refresh_from_db()
    assert link.view_count == 1

    for bad in (url[:-1] + ("a" if url[-1] != "a" else "b"), f"/shared/{link.pk.hex}", "/shared/x"):
        assert nobody.get(bad).status_code == 404
    with time_machine.travel(timezone.now() + timedelta(days=2, seconds=1)):
        assert nobody.get(url).status_code == 404
    admin.post(f"/runs/{run.pk}/share/{link.pk}")
    assert nobody.get(url).status_code == 404
    assert [entry.action for entry in AuditEntry.objects.filter(action__startswith="run.share").order_by("pk")] == [
        "run.shared",
        "run.share_revoked",
    ]


def test_a_shared_report_is_rendered_once(project: Project, run: AgentRun) -> None:
    """The report is rendered again after a change of the run or a project rule. Other requests do not read its
    messages.
    """
    admin = client_of(project, Role.ADMIN)
    admin.post(f"/runs/{run.pk}/share", {"days": "2"})
    url = f"/shared/{run_annotations.token_of(ShareLink.objects.get())}"
    first = text_of(Client().get(url))
    with CaptureQueriesContext(connection) as queries:
        plain, packed = Client().get(url), Client(headers={"Accept-Encoding": "gzip"}).get(url)
    assert not [query["sql"] for query in queries if "agent_run_messages" in query["sql"]]
    assert len(queries) <= 8
    assert text_of(plain) == gzip.decompress(packed.content).decode() == first
    assert packed["Content-Encoding"] == "gzip"
    for header in ("Content-Security-Policy", "Referrer-Policy", "X-Robots-Tag", "Cache-Control"):
        assert plain[header].split(",")[0] == packed[header].split(",")[0]

    AgentRun.objects.filter(pk=run.pk).update(title="Another title")
    assert "Another title" in text_of(Client().get(url))
    redaction_changes.add_secret(project, "title", "Another title", actor="test")
    redaction_cache.CACHE.expire()  # otherwise it expires within seconds
    assert "Another title" not in text_of(Client().get(url))
    admin.post(f"/runs/{run.pk}/share/{ShareLink.objects.get().pk}")
    assert Client().get(url).status_code == 404


def test_the_report_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_cache, "MAX_BYTES", 1000)
    monkeypatch.setattr(report_cache, "MAX_REPORT", 400)
    cache = report_cache.ReportCache()
    noise = [random.Random(number).randbytes(150).hex() for number in range(9)]
    for number, text in enumerate(noise):
        assert [*cache.keep(number, iter([text, "end"]))] == [text, "end"]
    assert [number for number in range(9) if cache.get(number)] == [4, 5, 6, 7, 8]
    assert "".join(cache.keep("long", iter(noise * 3))) == "".join(noise * 3)
    assert cache.get("long") is None
    assert next(cache.keep("left", iter(noise)))  # the client disconnects
    assert cache.get("left") is None


def test_retention_deletes_notes_and_links_with_their_run(project: Project, run: AgentRun) -> None:
    admin = client_of(project, Role.ADMIN)
    admin.post(f"/runs/{run.pk}/notes", {"text": "Gone soon."})
    admin.post(f"/runs/{run.pk}/share", {"days": "90"})
    url = f"/shared/{run_annotations.token_of(ShareLink.objects.get())}"
    with time_machine.travel(timezone.now() + timedelta(days=31)):
        report = RemovalReport(project, 30)
        list(retention.apply(report, by="test"))
        assert Client().get(url).status_code == 404

    assert (report.rows["agent_run_notes"], report.rows["agent_run_share_links"]) == (1, 1)
    assert not RunNote.objects.exists()
    assert not ShareLink.objects.exists()
