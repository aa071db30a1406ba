"""The pages of runs: /p/{project}/… for what a project has, /runs/{run}/… for one run, /compare for two."""

from __future__ import annotations

from django.urls import path

from runs.pages import actions, bulk, compare, detail, fork, listing, payloads, start

app_name = "runs"
urlpatterns = [
    # /p/{project}/runs
    path("p/<slug:project>/runs", listing.index, name="list"),
    path("p/<slug:project>/runs/rows", listing.rows, name="list-rows"),
    path("p/<slug:project>/runs/stream", listing.stream, name="list-stream"),
    path("p/<slug:project>/runs/resume", bulk.resume, name="resume-many"),
    path("p/<slug:project>/runs/new", start.start, name="start"),
    # /runs/{run}
    path("runs/<uuid:run_id>", detail.detail, name="detail"),
    path("runs/<uuid:run_id>/rows", detail.rows, name="rows"),
    path("runs/<uuid:run_id>/head", detail.head, name="head"),
    path("runs/<uuid:run_id>/stream", detail.stream, name="stream"),
    path("runs/<uuid:run_id>/resume", actions.resume, name="resume"),
    path("runs/<uuid:run_id>/pause", actions.pause, name="pause"),
    path("runs/<uuid:run_id>/stop", actions.stop, name="stop"),
    path("runs/<uuid:run_id>/send", actions.send, name="send"),
    path("runs/<uuid:run_id>/answer", actions.answer, name="answer"),
    path("runs/<uuid:run_id>/fork", fork.fork, name="fork"),
    path("runs/<uuid:run_id>/messages/<uuid:message_id>", payloads.message, name="message"),
    path("runs/<uuid:run_id>/calls/<uuid:call_id>", payloads.call, name="call"),
    path("runs/<uuid:run_id>/calls/<uuid:call_id>/resolve", actions.resolve, name="resolve"),
    path("runs/<uuid:run_id>/events/<int:seq>", payloads.event, name="event"),
    # /compare
    path("compare", compare.compare, name="compare"),
]
