"""What agents, tools and strangers wrote is text on every page: in lists, titles, filters, messages and errors.

Markup, attributes of htmx, terminal sequences, bidi and invisible characters, endless text; and no secrets.
"""

from __future__ import annotations

from html.parser import HTMLParser

from django.test import Client

from agentops.projects.models import Project
from tests.support.admin.every_table import GLOBAL, fill, list_url, page_url, registered, rows_of

HOSTILE = (
    "</title></pre></textarea><script>alert(1)</script><img src=x onerror=alert(1)><svg onload=alert(1)>"
    "<a href='javascript:alert(1)'>a</a><iframe srcdoc='x'></iframe><style>@import 'x'</style><base href='//x'>"
    "<div hx-get='/admin/' hx-trigger=load data-hx-on:click='x' hx-swap-oob=true>\" onmouseover=alert(1) "
    "\x1b[2J\x1b]0;title\x07\x9b31m \u202edesrever\u202c zero\u200bwidth {{ 7|add:7 }} {% debug %} %s %(x)s &lt; "
)
#: No bidi control, no escape, no control character, wherever it stands.
UNSEEN = set("\x1b\x07\x9b\u202e\u202c\u200b")
OF_OURS = {"script": "/static/", "iframe": None, "base": None, "style": None, "object": None, "embed": None}


class Reader(HTMLParser):
    """Collects what acts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name, value in attrs:
            if name.startswith(("on", "hx-", "data-hx-")) or (value or "").strip().lower().startswith("javascript:"):
                self.found.append(f"<{tag} {name}={value}>")
        if tag in OF_OURS:
            source = given.get("src") or ""
            ours = OF_OURS[tag]
            if ours is None or not source.startswith((ours, "/admin/jsi18n/")):
                self.found.append(f"<{tag} src={source}>")


def assert_inert(text: str, where: str) -> None:
    reader = Reader()
    reader.feed(text)
    assert reader.found == [], where
    assert not UNSEEN & set(text), where
    assert "14 " not in text.partition("{{ 7")[2][:0], where


def test_rows_are_text_everywhere(client: Client, project: Project) -> None:
    """Postgres takes no NUL; everything else may stand in a row."""
    project.name = HOSTILE[:200]
    project.save()
    fill(project, rows=2, text=HOSTILE)
    for model in registered():
        if model in GLOBAL:
            continue
        assert_inert(client.get(list_url(model)).content.decode(), model.__name__)
        for row in rows_of(model, project):
            text = client.get(page_url(row)).content.decode()
            assert_inert(text, model.__name__)
            delete = client.get(page_url(row, "delete"))
            assert_inert(delete.content.decode(), model.__name__)


def test_it_is_shown_and_not_dropped(client: Client, project: Project) -> None:
    run = fill(project, rows=1, text=HOSTILE)

    text = client.get(page_url(run)).content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "⟨U+202E⟩desrever" in text
    assert "{{ 7|add:7 }}" in text


def test_what_is_asked_for_is_text_too(client: Client, project: Project) -> None:
    run = fill(project, rows=1)
    for model in registered():
        for query in (
            {"q": HOSTILE},
            {"status": HOSTILE},
            {"run": HOSTILE},
            {"about": f"x:{HOSTILE[:150]}"},
            {"older": HOSTILE},
        ):
            answer = client.get(list_url(model), query, follow=True)
            reader = Reader()
            reader.feed(answer.content.decode())
            assert reader.found == []
    answer = client.get(page_url(run).replace(str(run.pk), "%3Cscript%3Ealert(1)%3C/script%3E"), follow=True)
    assert_inert(answer.content.decode(), "error page")


def test_a_megabyte_is_cut(client: Client, project: Project) -> None:
    """With where the rest of it is; a list cuts at a line."""
    run = fill(project, rows=1, text="x" * 300_000)
    message = run.messages.order_by("-position")[0]

    text = client.get(page_url(message)).content.decode()
    assert len(text) < 120_000
    assert f'<a href="/runs/{run.pk}/messages/{message.pk}">Show all</a>' in text
    assert len(client.get(list_url(type(message))).content) < 40_000


def test_secrets_are_not_shown(client: Client, project: Project) -> None:
    """Also of what was stored before anybody looked for secrets in it."""
    secret = "sk-ant-api03-" + "aB3dE5gH7j" * 9
    run = fill(project, rows=1, text=f"the key is {secret}")
    for model in registered():
        if model not in GLOBAL:
            for row in rows_of(model, project):
                assert secret not in client.get(page_url(row)).content.decode(), model
            assert secret not in client.get(list_url(model)).content.decode(), model
    assert secret not in client.get(page_url(run)).content.decode()
