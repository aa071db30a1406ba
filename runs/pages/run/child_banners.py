"""The banner of a run below which other runs wait for a person. One query."""

from __future__ import annotations

from dataclasses import replace

from django.urls import reverse

from runs.pages.run.banner import Banner, ChildInNeed
from runs.pages.run.facts import RunData
from runs.pages.timeline.cards import LINE
from runs.queries.waiting_for_people import WaitingRun, waiting_below
from runs.statuses import WaitReason
from timeline.display import clip

#: Runs that the banner names; the tree has the others.
MAX_NAMED = 5
_LABELS = {
    WaitReason.INPUT.value: "Answer question",
    WaitReason.UNKNOWN_TOOL.value: "Choose outcome of tool call",
    "": "Resume or stop run",
}


def child_banners(data: RunData) -> list[Banner]:
    """Return the banner that names the runs below this one that wait for a person; none if no run does."""
    if not data.child_count:
        return []
    waiting = waiting_below(data.run.pk, MAX_NAMED + 1)
    if not waiting:
        return []
    is_cut, named = len(waiting) > MAX_NAMED, list(map(_child, waiting[:MAX_NAMED]))
    head = "1 child run needs you" if len(waiting) == 1 else f"{len(named)} child runs need you"
    banner = Banner(level="warn", icon="child", head=head, children=named)
    if not is_cut:
        return [banner]
    tree = reverse("runs:tree", args=[data.run.pk])
    return [replace(banner, head=f"More than {head}", href=tree, label="Show the tree of runs")]


def _child(run: WaitingRun) -> ChildInNeed:
    label = _LABELS.get(run.reason) or f"Approve or deny {clip(run.tool, LINE).text or 'tool call'}"
    return ChildInNeed(reverse("runs:detail", args=[run.id]), label, clip(run.title, LINE).text or "(untitled)")
