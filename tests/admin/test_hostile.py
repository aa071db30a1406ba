"""Text of agents, tools and users is escaped on every page, made legible, redacted and cut.

The samples hold markup, htmx attributes, terminal sequences, bidi and invisible characters, very long text and secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db.models import Model
from django.test import Client

from agentops.accounts.models import Project
from runs.models import AgentRun
from tests.support.admin_rows import (
    GLOBAL,
    fill,
    list_url,
    page_url,
    registered,
    rolled_back,
    rows_of,
    superuser_client,
)
from tests.support.factories import make_project

#: Text that would be markup if any of it were not escaped.
ACTIVE = (
    *("<script>alert(1)", "<img src=x", "<svg onload", "<a href='javascript:", "<iframe srcdoc", "<style>@"),
    *("<base href", "<div hx-get='/admin/'", '" onmouseover='),
)
HOSTILE = (
    f"</title></pre>{''.join(ACTIVE)}alert(1)</script> "
    "\x1b[2J\x1b]0;title\x07\x9b31m \u202edesrever\u202c zero\u200bwidth {{ 7|add:7 }} {% debug %} %s %(x)s &lt; "
)
SECRET = "sk-ant-api03-" + "aB3dE5gH7j" * 9
#: Bidi controls, escapes and control characters, which no page may contain.
UNSEEN = set("\x1b\x07\x9b\u202e\u202c\u200b")
every_model = pytest.mark.parametrize(
    "model", [model for model in registered() if model not in GLOBAL], ids=lambda model: model._meta.label
)


def assert_inert(text: str, where: str) -> None:
    assert not [each for each in ACTIVE if each in text], where
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
        rows = {model: rows_of(model, project) for model in registered() if model not in GLOBAL}
        fill(project, rows=1, text=f"the key is {SECRET}")
        for model, found in rows.items():
            found.append(rows_of(model, project)[1])
        yield Written(project, run, rows, superuser_client())


@pytest.fixture
def written(kept_texts: Written, db: None) -> Written:
    return kept_texts


@pytest.mark.slow
@every_model
def test_rows_are_text_and_secrets_are_not_shown(written: Written, model: Any) -> None:
    """PostgreSQL stores no NUL; a row can hold all other characters. The secrets were never redacted."""
    for url in (list_url(model), *map(page_url, written.rows[model])):
        text = written.client.get(url).content.decode()
        assert_inert(text, url)
        assert SECRET not in text


def test_hostile_text_is_escaped_and_not_dropped(written: Written) -> None:
    text = written.client.get(page_url(written.run)).content.decode()

    assert "&lt;script&gt;alert(1)" in text
    assert "⟨U+202E⟩desrever" in text
    assert "{{ 7|add:7 }}" in text


@pytest.mark.slow
@every_model
def test_parameters_and_paths_are_escaped(written: Written, model: Any) -> None:
    unknown = page_url(written.rows[model][0]).rsplit("/", 3)[0] + "/%3Cscript%3Ealert(1)%3C/change/"
    lists = ((list_url(model), {name: HOSTILE}) for name in ("q", "status__exact", "run", "object_id", "p"))
    for url, query in ((unknown, {}), *lists):
        answer = written.client.get(url, query, follow=True)
        assert answer.status_code in {200, 400}
        assert not [each for each in ACTIVE if each in answer.content.decode()]


def test_a_megabyte_is_cut(written: Written) -> None:
    """The page says so, and links to the page of the site; a list shows one line."""
    run = fill(written.project, rows=1, text="x" * 300_000)
    message = run.messages.order_by("-position")[0]

    text = written.client.get(page_url(message)).content.decode()
    assert len(text) < 120_000
    assert "(the first 65,536 of 300" in text
    assert f'<a href="/runs/{run.pk}/messages/{message.pk}" class="viewsitelink">' in text
    assert len(written.client.get(list_url(type(message))).content) < 40_000
