"""Text of agents, tools and users is escaped on every page: in lists, titles, filters, messages and errors.

The samples hold markup, htmx attributes, terminal sequences, bidi and invisible characters, very long text and secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client

from agentops.accounts.models import Project
from runs.models import AgentRun
from tests.support.admin.every_table import GLOBAL, fill, list_url, page_url, registered, rows_of
from tests.support.admin.kept_rows import rolled_back
from tests.support.admin.staff import client_of
from tests.support.factories import make_project

HOSTILE = (
    "</title></pre></textarea><script>alert(1)</script><img src=x onerror=alert(1)><svg onload=alert(1)>"
    "<a href='javascript:alert(1)'>a</a><iframe srcdoc='x'></iframe><style>@import 'x'</style><base href='//x'>"
    "<div hx-get='/admin/' hx-trigger=load data-hx-on:click='x' hx-swap-oob=true>\" onmouseover=alert(1) "
    "\x1b[2J\x1b]0;title\x07\x9b31m \u202edesrever\u202c zero\u200bwidth {{ 7|add:7 }} {% debug %} %s %(x)s &lt; "
)
SECRET = "sk-ant-api03-" + "aB3dE5gH7j" * 9
OF_PROJECTS = [model for model in registered() if model not in GLOBAL]
#: Bidi controls, escapes and control characters, which no page may contain.
UNSEEN = set("\x1b\x07\x9b\u202e\u202c\u200b")
#: The attributes of every page of the site, including error pages.
OWN_HEADERS = r'{"X-CSRFToken": "[A-Za-z0-9]+"}'
OF_OURS = {"script": "/static/", "iframe": None, "base": None, "style": None, "object": None, "embed": None}


class Reader(HTMLParser):
    """A parser that collects active markup."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "body" and re.fullmatch(OWN_HEADERS, given.get("hx-headers") or ""):
            attrs = [(name, value) for name, value in attrs if name != "hx-headers"]
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


@dataclass(frozen=True)
class Written:
    """A project with one row of hostile text and one with a secret in each table, and the client of a superuser."""

    project: Project
    run: AgentRun
    rows: dict[type[Model], list[Model]]
    client: Client


@pytest.fixture(scope="module")
def kept_texts(django_db_setup: None, django_db_blocker: Any) -> Iterator[Written]:
    with rolled_back(django_db_blocker):
        project = make_project("alpha")
        project.name = HOSTILE[:200]
        project.save()
        run = fill(project, rows=1, text=HOSTILE)
        rows = {model: rows_of(model, project) for model in OF_PROJECTS}
        fill(project, rows=1, text=f"the key is {SECRET}")
        for model, found in rows.items():
            found.append(rows_of(model, project)[1])
        yield Written(project, run, rows, client_of(User.objects.create_superuser("boss")))


@pytest.fixture
def written(kept_texts: Written, db: None) -> Written:
    return kept_texts


@pytest.mark.slow
@pytest.mark.parametrize("model", OF_PROJECTS, ids=lambda model: model._meta.label)
def test_rows_are_text_and_secrets_are_not_shown(written: Written, model: Any) -> None:
    """PostgreSQL stores no NUL; a row can hold all other characters. The secrets were never redacted."""
    rows = written.rows[model]
    for url in (list_url(model), *map(page_url, rows), page_url(rows[0], "delete")):
        text = written.client.get(url).content.decode()
        assert_inert(text, url)
        assert SECRET not in text


def test_hostile_text_is_escaped_and_not_dropped(written: Written) -> None:
    text = written.client.get(page_url(written.run)).content.decode()

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "⟨U+202E⟩desrever" in text
    assert "{{ 7|add:7 }}" in text


@pytest.mark.slow
@pytest.mark.parametrize("model", registered(), ids=lambda model: model._meta.label)
def test_query_parameters_are_escaped(written: Written, model: Any) -> None:
    asked = {"q": HOSTILE, "status": HOSTILE, "run": HOSTILE, "about": f"x:{HOSTILE[:150]}", "older": HOSTILE}
    for name, value in asked.items():
        answer = written.client.get(list_url(model), {name: value})
        assert answer.status_code in {200, 400} or answer.url == f"{list_url(model)}?e=1"
        reader = Reader()
        reader.feed(answer.content.decode())
        assert reader.found == []


def test_paths_are_escaped(written: Written) -> None:
    url = page_url(written.run).replace(str(written.run.pk), "%3Cscript%3Ealert(1)%3C/script%3E")

    assert_inert(written.client.get(url, follow=True).content.decode(), "error page")


def test_a_megabyte_is_cut(written: Written) -> None:
    """The page links to the full text; a list shows one line."""
    run = fill(written.project, rows=1, text="x" * 300_000)
    message = run.messages.order_by("-position")[0]

    text = written.client.get(page_url(message)).content.decode()
    assert len(text) < 120_000
    assert f'<a href="/runs/{run.pk}/messages/{message.pk}">Show all</a>' in text
    assert len(written.client.get(list_url(type(message))).content) < 40_000
