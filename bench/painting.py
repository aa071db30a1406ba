"""The server's CPU time for a page of the runs list, compared with Django's ListView and one flat template over the
same runs, without sessions, roles, filters and redaction.

Both run in this process in turns. The best time of each counts, because other processes use the machine too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.list_rows import Filled
from bench.report import Row, note, show

PAGE = 50
TURNS = 30
#: Of the bare page's processor time.
GOAL = 2.0

FLAT = """<!doctype html><title>Runs</title><table>{% for run in object_list %}<tr id="run-{{ run.pk }}">
<td>{{ run.status }} {{ run.status_reason }}<td>{{ run.agent.slug }}<td><a href="/runs/{{ run.pk }}">{{ run.title }}</a>
{{ run.summary }}<td><time datetime="{{ run.started_at|date:'c' }}">{{ run.started_at|timesince }}</time>
<td>{{ run.step_count }}/{{ run.max_steps }}<td>{{ run.input_tokens }} / {{ run.output_tokens }}<td>{{ run.cost_usd }}
<td>{{ run.source }}<td>
<time datetime="{{ run.log.last_event_at|date:'c' }}">{{ run.log.last_event_at|timesince }}</time>
{% endfor %}</table>"""


def compare(filled: Filled) -> None:
    """Compare both. Needs Django set up, and the runs of bench/list_rows.py."""
    ours, flat = _ours(filled), _flat(filled)
    took: dict[str, list[float]] = {"ours": [], "flat": []}
    for _ in range(TURNS):
        for who, ask in (("ours", ours), ("flat", flat)):
            began = time.process_time()
            ask()
            took[who].append((time.process_time() - began) * 1000)
    mine, bare = min(took["ours"]), min(took["flat"])
    what = f"page of {PAGE} runs, processor time, against a ListView"
    show(Row(what, f"{mine:.1f} ms", f"{bare:.1f} ms", mine / bare, at_most=GOAL))
    note(f"{1000 / mine:.0f} such pages per second of CPU time")


def _ours(filled: Filled) -> Callable[[], None]:
    from django.conf import settings
    from django.test import Client

    client = Client(HTTP_HOST="127.0.0.1")
    client.cookies[settings.SESSION_COOKIE_NAME] = filled.session

    def ask() -> None:
        answer = client.get("/p/bench/runs")
        if answer.content.count(b'<tr id="run-') != PAGE:
            raise RuntimeError(f"the list has not {PAGE} rows: {answer.status_code}")

    return ask


def _flat(filled: Filled) -> Callable[[], None]:
    from django.template import engines
    from django.test import RequestFactory
    from django.views.generic import ListView

    from runs.models import AgentRun

    template, factory = engines["django"].from_string(FLAT), RequestFactory()
    runs = AgentRun.objects.filter(project=filled.project_id).select_related("log", "agent")
    newest = runs.order_by("-created_at", "-pk")[:PAGE]

    def ask() -> None:
        view = ListView(queryset=newest)
        view.setup(factory.get("/runs"))
        view.object_list = view.get_queryset()
        page = template.render(view.get_context_data(), view.request)
        if page.count("<tr id=") != PAGE:
            raise RuntimeError(f"the bare list has not {PAGE} rows")

    return ask
