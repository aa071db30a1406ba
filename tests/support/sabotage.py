"""Apps that switch off a protection of the product in a process under test, to prove that checks detect the damage.

process_settings.py installs them; FLOW_SABOTAGE names the protection of flow runs. The product has no code for it:
functions are replaced at run time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.apps import AppConfig
from django.conf import settings

SABOTAGE = "FLOW_SABOTAGE"


class FlowSabotageConfig(AppConfig):
    name = "tests.support.sabotage"
    label = "flow_sabotage"
    path = str(Path(__file__).parent)

    def ready(self) -> None:
        if not settings.AGENTOPS_TESTING:
            raise RuntimeError("a sabotage is refused unless AGENTOPS_TESTING is set")
        SABOTAGES[os.environ[SABOTAGE]]()


def advance_in_pieces() -> None:
    """Open the runs of nodes outside the transaction that records them: a worker that takes over opens them again."""
    from runs.flows import runner
    from runs.models import FlowRun

    runner.transaction = SimpleNamespace(atomic=nullcontext)  # type: ignore[assignment]
    objects = SimpleNamespace(due=FlowRun.objects.due, select_for_update=lambda **_: FlowRun.objects)
    runner.FlowRun = SimpleNamespace(objects=objects)  # type: ignore[assignment,misc]


def older_snapshot_saved() -> None:
    """Make a delayed worker save its snapshot over a newer one, because no versions are compared."""
    from runs.lifecycle import flow_transitions
    from runs.models import FlowRun

    keep, saved = flow_transitions.keep, []

    def keep_late(flow_run: Any, decisions: Any, **options: Any) -> None:
        before = flow_run.snapshot
        keep(flow_run, decisions, **options)
        saved.append(flow_run.version)
        if len(saved) == 4:
            FlowRun.objects.filter(pk=flow_run.pk).update(snapshot=before)

    flow_transitions.keep = keep_late


def ends_not_looked_for() -> None:
    """Notify the flow only from the worker in which a node's run ends. If that worker dies first, the flow hangs."""
    from runs.models import FlowRun
    from runs.models.flows import FlowRunQuerySet

    FlowRunQuerySet.due = lambda self: self.filter(is_due=True)  # type: ignore[method-assign]
    assert FlowRun.objects.due() is not None


def resumed_by_each_worker() -> None:
    """Make each worker that takes over a flow run record the resume again."""
    from runs.flows import runner
    from timeline.events.flow import FlowResumed

    joined, told = runner.kernel.advance, set()

    def advance(graph: Any, snapshot: Any, *args: Any, **more: Any) -> Any:
        decisions = joined(graph, snapshot, *args, **more)
        if snapshot["runId"] not in told:
            told.add(snapshot["runId"])
            happened = [each for each in decisions.events if each.visit is not None][:1]
            decisions.events += [replace(each, payload=FlowResumed(), visit=None) for each in happened]
        return decisions

    runner.kernel = SimpleNamespace(advance=advance)  # type: ignore[assignment]


SABOTAGES: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (advance_in_pieces, older_snapshot_saved, ends_not_looked_for, resumed_by_each_worker)
}


class UnwatchedConfig(AppConfig):
    name = "tests.support.sabotage"
    label = "unwatched"
    path = str(Path(__file__).parent)

    def ready(self) -> None:
        from timeline.live import access_watch

        access_watch.CHECK_INTERVAL_S = 3600.0
