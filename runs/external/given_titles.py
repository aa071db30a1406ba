"""The titles that programs give to imported sessions at any time."""

from __future__ import annotations

from collections.abc import Sequence

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.external.origins import first_line
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import AgentRun, ExternalRun
from timeline import log

#: Runs per query.
CHUNK = 500


def give(titled: Sequence[tuple[AgentRun, str]]) -> None:
    """Set the current titles from the programs, except on runs that a person has renamed."""
    for at in range(0, len(titled), CHUNK):
        titles = {run.pk: REDACTOR.clean_text(title)[0][:MAX_TITLE] for run, title in titled[at : at + CHUNK] if title}
        given = dict(ExternalRun.objects.filter(run__in=list(titles)).values_list("run", "given_title"))
        for run, _ in titled[at : at + CHUNK]:
            if run.pk in given and given[run.pk] != titles[run.pk]:
                _give(run, titles[run.pk], given[run.pk])


def _give(run: AgentRun, title: str, before: str) -> None:
    if run.title in ("", before, first_line(run)):
        run.title = title
        run.save(update_fields=["title"])
        log.announce_run(run.project_id, run.pk)
    ExternalRun.objects.filter(run=run.pk).update(given_title=title)
