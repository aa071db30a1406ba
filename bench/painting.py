"""The server's CPU time for a page of the runs list, and for the fragment with its updated rows, compared with Django's
ListView and one flat template over the same table, without sessions, roles, filters and redaction (G18).

All run in this process in turns. The best time of each counts, because other processes use the machine too. Each turn
reads another page, so that no text is in the site's cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

from bench.list_rows import FilledSite
from bench.report import Row, note, show

PAGE = 50
TURNS = 30
#: Relative to the processor time of the bare page.
GOAL = 1.0
#: Milliseconds of processor time of a page.
PAGE_MS = 22.0

FLAT = """<!doctype html><title>Runs</title><table>{% for run in object_list %}<tr id="run-{{ run.pk }}">
<td>{{ run.status }} {{ run.status_reason }}<td>{{ run.agent.slug }}<td><a href="/runs/{{ run.pk }}">{{ run.title }}</a>
{{ run.summary }}<td><time datetime="{{ run.started_at|date:'c' }}">{{ run.started_at|timesince }}</time>
<td>{{ run.step_count }}/{{ run.max_steps }}<td>{{ run.input_tokens }} / {{ run.output_tokens }}<td>{{ run.cost_usd }}
<td>{{ run.source }}<td>
<time datetime="{{ run.log.last_event_at|date:'c' }}">{{ run.log.last_event_at|timesince }}</time>
{% endfor %}</table>"""


def compare(filled: FilledSite) -> None:
    """Compare the three. Needs Django set up, and the runs of bench/list_rows.py."""
    asked = {"page": _page(filled), "rows": _rows(filled), "flat": _flat(filled)}
    took: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(TURNS):
        for name, ask in asked.items():
            began = time.process_time()
            ask()
            took[name].append((time.process_time() - began) * 1000)
    bare = min(took["flat"])
    for name, what in (("page", f"page of {PAGE} runs"), ("rows", f"fragment of {PAGE} rows")):
        best = min(took[name])
        title = f"{what}, processor time, against a ListView"
        show(Row(title, f"{best:.1f} ms", f"{bare:.1f} ms", best / bare, at_most=GOAL))
    whole = min(took["page"])
    title, limit = f"page of {PAGE} runs, processor time", f"the goal: {PAGE_MS:.0f} ms"
    show(Row(title, f"{whole:.1f} ms", limit, whole / PAGE_MS, at_most=1))
    note(f"{1000 / whole:.0f} such pages per second of CPU time")


def _page(filled: FilledSite) -> Callable[[], None]:
    """Return a function that reads the next older page at each call."""
    get, url = _browser(filled), "/p/bench/runs"

    def ask() -> None:
        nonlocal url
        page = get(url)
        _, _, link = page.partition('rel="next" href="')
        url = f"/p/bench/runs{link.partition(chr(34))[0]}"

    return ask


def _rows(filled: FilledSite) -> Callable[[], None]:
    """Return a function that reads the rows of the next older runs at each call."""
    from runs.models import AgentRun

    get = _browser(filled)
    newest = AgentRun.objects.filter(project=filled.project_id).newest_first().values_list("pk", flat=True)
    ids = iter(newest[: PAGE * TURNS])

    def ask() -> None:
        get(f"/p/bench/runs/rows?ids={','.join(str(pk) for pk in islice(ids, PAGE))}&boxes=1")

    return ask


def _browser(filled: FilledSite) -> Callable[[str], str]:
    from django.conf import settings
    from django.test import Client

    client = Client(HTTP_HOST="127.0.0.1")
    client.cookies[settings.SESSION_COOKIE_NAME] = filled.session

    def get(url: str) -> str:
        answer = client.get(url)
        if answer.content.count(b'<tr id="run-') != PAGE:
            raise RuntimeError(f"{url} has not {PAGE} rows: {answer.status_code}")
        return answer.content.decode()

    return get


def _flat(filled: FilledSite) -> Callable[[], None]:
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
