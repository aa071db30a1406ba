"""URLs of the run pages: /p/{project}/… for the runs and imports of a project, /runs/{run}/… for a run, /compare."""

from __future__ import annotations

from django.urls import path

from runs.pages.approvals import decision_pages, inbox_page
from runs.pages.compare import compare_page
from runs.pages.forms import fork_form, start
from runs.pages.imports import imports_page, ingest_page
from runs.pages.run import action_pages, payloads, replay_page, run_page
from runs.pages.runs import bulk_resume, runs_page
from runs.pages.search import search_page
from runs.pages.tree import tree_page

app_name = "runs"
urlpatterns = [
    # /p/{project}/runs
    path("p/<slug:project>/runs", runs_page.index, name="list"),
    path("p/<slug:project>/runs/rows", runs_page.rows, name="list-rows"),
    path("p/<slug:project>/runs/stream", runs_page.stream, name="list-stream"),
    path("p/<slug:project>/runs/resume", bulk_resume.resume, name="resume-many"),
    path("p/<slug:project>/runs/new", start.start, name="start"),
    # /p/{project}/imports, /p/{project}/ingest
    path("p/<slug:project>/imports", imports_page.index, name="imports"),
    path("p/<slug:project>/imports/<uuid:import_id>", imports_page.detail, name="import"),
    path("p/<slug:project>/ingest", ingest_page.index, name="ingest"),
    # /p/{project}/approvals, /approvals
    path("p/<slug:project>/approvals", inbox_page.index, name="approvals"),
    path("approvals", inbox_page.everything, name="all-approvals"),
    path("approvals/<str:token>", decision_pages.by_link, name="approval-link"),
    # /p/{project}/search
    path("p/<slug:project>/search", search_page.index, name="search"),
    # /runs/{run}
    path("runs/<uuid:run_id>", run_page.detail, name="detail"),
    path("runs/<uuid:run_id>/rows", run_page.rows, name="rows"),
    path("runs/<uuid:run_id>/head", run_page.head, name="head"),
    path("runs/<uuid:run_id>/stream", run_page.stream, name="stream"),
    path("runs/<uuid:run_id>/replay", replay_page.replay, name="replay"),
    path("runs/<uuid:run_id>/replay/frame", replay_page.replay_frame, name="replay-frame"),
    path("runs/<uuid:run_id>/tree", tree_page.tree, name="tree"),
    path("runs/<uuid:run_id>/tree/rows", tree_page.rows, name="tree-rows"),
    path("runs/<uuid:run_id>/resume", action_pages.resume, name="resume"),
    path("runs/<uuid:run_id>/pause", action_pages.pause, name="pause"),
    path("runs/<uuid:run_id>/stop", action_pages.stop, name="stop"),
    path("runs/<uuid:run_id>/send", action_pages.send, name="send"),
    path("runs/<uuid:run_id>/answer", action_pages.answer, name="answer"),
    path("runs/<uuid:run_id>/fork", fork_form.fork, name="fork"),
    path("runs/<uuid:run_id>/messages/<uuid:message_id>", payloads.message, name="message"),
    path("runs/<uuid:run_id>/calls/<uuid:call_id>", payloads.call, name="call"),
    path("runs/<uuid:run_id>/calls/<uuid:call_id>/resolve", action_pages.resolve, name="resolve"),
    path("runs/<uuid:run_id>/calls/<uuid:call_id>/decide", decision_pages.decide, name="decide"),
    path("runs/<uuid:run_id>/events/<int:seq>", payloads.event, name="event"),
    # /compare
    path("compare", compare_page.compare, name="compare"),
]
