"""The actions on runs: create, resume, fork, pause, stop, send commands, resolve tool calls.

Each view checks the permission, parses the body, and calls one function below runs.actions. All are POST requests; with
an `Idempotency-Key`, a repeated request has no further effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NoReturn

from django.http import HttpResponse
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action, project_for
from agentops.accounts.models import Project
from agentops.base.refusals import Conflict, Invalid
from runs.access import require_edits
from runs.actions import agent_definitions, run_actions
from runs.actions.resume import ResumeResult
from runs.actions.run_actions import BulkOutcome
from runs.actions.unknown_calls import OutcomeChoice
from runs.api.answers import COMMAND_OR_RUN, KEYS, RESUMED_RUN, CommandAnswer, ResumedMany
from runs.api.base_views import ApiView
from runs.api.problems import echo, field_pointers
from runs.api.requests.bodies import StrictSerializer, document_of, validated
from runs.api.requests.idempotency import answer_once
from runs.api.requests.inputs import (
    BODY_RUN_IDS,
    MAX_IDS,
    CallOutcome,
    EmptyRunBody,
    NewCommand,
    NewFork,
    NewRun,
    NewSignal,
    ResumeRun,
    ResumeRuns,
)
from runs.api.run_views import RunList
from runs.external import recorded_ends
from runs.lifecycle.inbox import PostResult
from runs.models import AgentRun
from runs.queries.json_lists import Where, id_param
from runs.queries.record_columns import TOOL_CALL
from runs.queries.run_columns import RUN, runs_of, with_id
from runs.statuses import LIVE, RunStatus
from timeline.models import RunKind

#: Filter of a bulk action → its column.
FILTERS = {name: name for name in ("status_reason", "parent_run_id", "root_run_id")} | {"agent_id": "agent__slug"}

Handler = Callable[[dict[str, Any]], Response]
Preparation = Callable[[dict[str, Any]], dict[str, Any]]


def _refuse(error: Exception, data: dict[str, Any]) -> NoReturn:
    raise error


class ActionView(ApiView):
    """A POST with a body and one action, on a run or flow run, or in a project."""

    #: The permission that the caller needs.
    required_action: ClassVar[Action] = Action.OPERATE
    #: The serializer of the body, if it is not `serializer_class`: views with a list use that for the rows.
    body_class: ClassVar[type[StrictSerializer] | None] = None
    #: Whether an empty body counts as `{}`.
    is_body_optional: ClassVar[bool] = False

    def post(self, request: Request, **_: Any) -> HttpResponse:
        if self.kwargs.keys() & {"run_id", "flow_run_id"}:
            run = self.get_any_run(self.required_action)
            return self.run_once(run.project, partial(self.act, run))
        project = self.get_project(self.required_action)
        return self.run_once(project, partial(self.act, project), partial(self.prepare, project))

    def act(self, target: Any, data: dict[str, Any]) -> Response:
        """Carry out the action. `target`: the run, flow run or project of the URL. `data`: the validated body."""
        raise NotImplementedError

    def prepare(self, target: Any, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data for `act`. Slow work belongs here, because with a key `act` runs in a transaction."""
        return data

    def run_once(self, project: Project, act: Handler, prepare: Preparation | None = None) -> HttpResponse:
        """Carry out the action, or return the stored answer of the idempotency key."""
        document = document_of(self.request, optional=self.is_body_optional)
        data = validated(self.body_class or self.get_serializer_class(), document)
        self._require_same_run(project, data.pop(BODY_RUN_IDS, set()))
        if prepare is not None:
            try:
                data = prepare(data)
            except Exception as error:
                # Raised by `act`, so that a repeated request gets the first answer even if its preparation now fails.
                act = partial(_refuse, error)
        return answer_once(self.request, self.principal, project, document, lambda: self._render(act(data)))

    def _render(self, response: Response) -> HttpResponse:
        """Render the answer now and not later as DRF does: its content may be stored for repeated requests."""
        content: HttpResponse = self.finalize_response(self.request, response).render()
        return content

    def _require_same_run(self, project: Project, run_ids: set[str]) -> None:
        """Raise `Conflict` if the body names another run than the URL. It may name the run by its external ID."""
        run_id = self.kwargs.get("run_id")
        others = {name for name in run_ids if name.lower() != str(run_id)}
        runs = AgentRun.objects.filter(project=project)
        if others and others != {runs.values_list("external_id", flat=True).get(pk=run_id)}:
            raise Conflict(f"the body refers to run {echo(min(others))}, the URL to run {run_id}", code="run_mismatch")

    def run_answer(self, run: AgentRun, status: int, **fields: Any) -> Response:
        """Return the run like `GET` of its URL, with additional fields; with status 201, also the Location header."""
        body = json.loads(RUN.one(with_id(runs_of(run.project_id), "r.id", run.pk)) or "{}")
        headers = {"Location": reverse("api:run", args=[self.kwargs["project"], run.pk])} if status == 201 else {}
        return Response({**body, **fields}, status, headers=headers)

    def resumed_answer(self, result: ResumeResult) -> Response:
        return self.run_answer(result.run, 200 if result.is_existing else 201, already_resumed=result.is_existing)

    def require_kill(self, project: Project) -> None:
        """Raise `Refusal` if the caller may not stop workers and resume any run."""
        project_for(self.principal, project.pk, Action.KILL)


class Runs(ActionView, RunList):
    """List the runs of a project, newest first.

    A run must match all filters, which are the same as in the run list on the site. With `root`, `reason`, or a filter
    by cost or duration, a page searches at most the next 10,000 runs, so it may be short or empty and still have a
    `next`. The order cannot be changed, because a position in another order is not exact; the list on the site can be
    sorted.
    """

    serializer_class = NewRun

    @extend_schema(responses={201: OpenApiResponse(RUN.schema(), "The new run, queued.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Start a run of an agent."""
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        if data["source"] == "external":
            return self.run_answer(run_actions.open_external(self.principal, project, **_external(data)), 201)
        with field_pointers():
            agent = agent_definitions.find(project, data["agent_id"])
        _require_native(data)
        run = run_actions.create(
            self.principal,
            project,
            agent,
            data["prompt"],
            parent_id=data["parent_run_id"],
            title=data["title"],
            labels=list(dict.fromkeys(data["labels"])),
            max_steps=data["max_steps"],
            run_kind=RunKind(data["run_kind"]),
        )
        return self.run_answer(run, 201)


@extend_schema(
    responses={
        201: OpenApiResponse(RESUMED_RUN, "The new run."),
        200: OpenApiResponse(RESUMED_RUN, "Already resumed: the run that continues it."),
    }
)
class Resume(ActionView):
    """Resume a paused run as a new run."""

    serializer_class = ResumeRun
    is_body_optional = True

    def act(self, run: AgentRun, data: dict[str, Any]) -> Response:
        if data["kill"]:
            self.require_kill(run.project)
        return self.resumed_answer(run_actions.resume(self.principal, run, **data))


@extend_schema(responses=ResumedMany)
class ResumeMany(ActionView):
    """Resume several runs."""

    serializer_class = ResumeRuns
    is_body_optional = True

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        ids, filters, _ = data.pop("ids"), data.pop("filter"), data.pop("all")
        if ids is None or data["kill"]:
            self.require_kill(project)
        if ids is None:
            runs = _active_runs(project, filters or {})
        else:
            runs = list(AgentRun.objects.select_related("project").filter(project=project, pk__in=ids))
        unknown_ids = set(ids or []) - {run.pk for run in runs}
        outcomes = run_actions.resume_many(self.principal, runs, **data)
        outcomes += [
            BulkOutcome(run_id, code="run_not_found", reason="no such run")
            for run_id in ids or []
            if run_id in unknown_ids
        ]
        parts = {"resumed": [one for one in outcomes if not one.code], "skipped": [one for one in outcomes if one.code]}
        return Response(ResumedMany(parts).data)


@extend_schema(responses={201: OpenApiResponse(RUN.schema(), "The new run, queued.")})
class Fork(ActionView):
    """Fork a run at a checkpoint.

    The new run continues the step numbers of the checkpoint and shares the messages before it. The original run does
    not change, regardless of its status.
    """

    serializer_class = NewFork

    def act(self, run: AgentRun, data: dict[str, Any]) -> Response:
        require_edits(self.principal, run, data["agent"] or {})
        checkpoint_id = data.pop("checkpoint")
        return self.run_answer(run_actions.fork(self.principal, run, checkpoint_id=checkpoint_id, **data), 201)


@extend_schema(
    responses={
        200: OpenApiResponse(RUN.schema(), "The run is paused."),
        202: OpenApiResponse(RUN.schema(), "The run pauses after its current step."),
    }
)
class PauseView(ActionView):
    """Pause a run after its current step.

    All its descendant runs that have not ended are paused too; `GET …/children` lists the children. Each is resumed
    separately.
    """

    serializer_class = EmptyRunBody
    is_body_optional = True

    def act(self, run: AgentRun, data: dict[str, Any]) -> Response:
        changed = run_actions.pause(self.principal, run).run
        return self.run_answer(changed, 200 if changed.state is RunStatus.PAUSED else 202)


@extend_schema(
    responses={
        200: OpenApiResponse(RUN.schema(), "The run has ended."),
        202: OpenApiResponse(RUN.schema(), "The worker stops the run."),
    }
)
class Stop(ActionView):
    """Stop a run. For a run that another program executes, only the recording stops; the program continues.

    All its descendant runs that have not ended are stopped too; `GET …/children` lists the children.
    """

    serializer_class = EmptyRunBody
    is_body_optional = True

    def act(self, run: AgentRun, data: dict[str, Any]) -> Response:
        changed = recorded_ends.stop(self.principal, run).run
        return self.run_answer(changed, 200 if changed.state is RunStatus.STOPPED else 202)


@extend_schema(
    responses=OpenApiResponse(
        TOOL_CALL.schema(), "The call with its result. A call that will run again is still `unknown`."
    )
)
class ResolveCall(ActionView):
    """Resolve a tool call whose outcome is unknown.

    `retry` runs the call again, `done` sets its output, `failed` its error; then the waiting run continues. Only the
    first decision counts. Later ones are refused with `call_not_unknown`, whose `chosen` is the first decision.
    """

    serializer_class = CallOutcome

    def act(self, run: AgentRun, data: dict[str, Any]) -> Response:
        choice = OutcomeChoice(data["choice"])
        text = data["message"] if choice is OutcomeChoice.FAILED else data["output"]
        run_actions.resolve_call(self.principal, run, self.kwargs["call_id"], choice, text=text)
        of_run = Where(("t.run_id = %s",), (id_param(run.pk),))
        return Response(json.loads(TOOL_CALL.one(with_id(of_run, "t.id", self.kwargs["call_id"])) or "{}"))


@extend_schema(
    responses={
        202: OpenApiResponse(CommandAnswer, "The command was recorded."),
        201: OpenApiResponse(RESUMED_RUN, "The new run."),
        200: OpenApiResponse(COMMAND_OR_RUN, "The command was recorded before."),
    }
)
class Commands(ActionView):
    """Send a command to a run."""

    serializer_class = NewCommand

    def act(self, run: AgentRun, data: dict[str, Any]) -> Response:
        principal, message = self.principal, data["message"]
        key = None if data["key"] is None else KEYS + data["key"]
        match data["type"]:
            case "resume":
                return self.resumed_answer(run_actions.resume(principal, run, message=message))
            case "send":
                posted = run_actions.send(principal, run, message, key=key)
            case "reply":
                posted = run_actions.reply(principal, run, message, key=key)
            case "pause":
                posted = run_actions.pause(principal, run, key=key)
            case _:
                posted = recorded_ends.stop(principal, run, key=key)
        return Response(_command_json(posted, data["type"]), 202 if posted.is_new else 200)


@extend_schema(
    responses={
        202: OpenApiResponse(CommandAnswer, "The signal was recorded."),
        200: OpenApiResponse(CommandAnswer, "The signal was recorded before."),
    }
)
class Signals(ActionView):
    """Send a signal to a remote run, which its code waits for by name. The run keeps it until it receives it."""

    serializer_class = NewSignal

    def act(self, run: AgentRun, data: dict[str, Any]) -> Response:
        key = None if data["key"] is None else KEYS + data["key"]
        posted = run_actions.signal(self.principal, run, data["name"], data["payload"], key=key)
        return Response(_command_json(posted, "signal"), 202 if posted.is_new else 200)


def _require_native(data: dict[str, Any]) -> None:
    """Raise `Invalid` for fields that only external runs have."""
    if data["external_id"] is not None:
        raise Invalid("only an external run has this", code="invalid_value", pointer="/external_id")


def _external(data: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `open_external` from the body."""
    names = ("external_id", "title", "prompt", "parent_run_id", "run_kind")
    return {**{name: data[name] for name in names}, "agent": data["agent_id"], "labels": data["labels"]}


def _active_runs(project: Project, filters: dict[str, Any]) -> list[AgentRun]:
    """Return the paused runs that match, then running ones, at most `MAX_IDS` together."""
    columns = {FILTERS[name]: value for name, value in filters.items()}
    runs = AgentRun.objects.select_related("project").filter(project=project, **columns)
    active = runs.unended().order_by("pk")
    paused = list(active.filter(status=RunStatus.PAUSED)[:MAX_IDS])
    return [*paused, *active.filter(status__in=LIVE)[: MAX_IDS - len(paused)]]


def _command_json(posted: PostResult, kind: str) -> dict[str, Any]:
    """Return the command as JSON. If none was stored, because the run already is in that state, most fields lack."""
    if posted.command is None:
        return {"id": None, "run_id": posted.run.pk, "run_status": posted.run.status, "type": kind}
    posted.command.refresh_from_db(fields=["applied_at", "outcome"])
    posted.command.run = posted.run
    answer: dict[str, Any] = CommandAnswer(posted.command).data
    return answer
