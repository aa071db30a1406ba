"""Every page of the site and every state of it: where, for whom, and under which name its pictures are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from django.contrib.auth.models import User
from django.test import Client

from runs.pages.components.sample_content import ContentKind
from tests.support.gallery.sample_site import LONG_WORD, SampleSite
from tests.support.web.addresses import PAGES, filled, parts_of

#: Endless: nothing to look at.
STREAMS = ("/stream",)


class Shown(NamedTuple):
    """A page. `name`: of its pictures; `person`: who looks at it, None for nobody."""

    name: str
    path: str
    person: User | None
    status: int = 200


def shown_pages(site: SampleSite) -> Iterator[Shown]:
    """All pages that an address leads to, and the states that one address may show."""
    yield from _by_address(site)
    yield from _runs_by_state(site)
    yield from _lists(site)
    yield from _of_no_project(site)


def _by_address(site: SampleSite) -> Iterator[Shown]:
    """The pages behind the addresses that answer with a whole page, not with a part of one or a file."""
    client = Client()
    client.force_login(site.boss)
    parts = parts_of(site.runs["completed"]) | {"uuid:flow_run_id": site.flow_run.pk, "uuid:sink_id": site.sink.pk}
    parts |= {"slug:flow": "review"}
    for address, methods in PAGES.items():
        if "GET" not in methods or address.endswith(STREAMS):
            continue
        path = filled(address, parts)
        answer = client.get(path, follow=True)
        content = b"" if answer.streaming else answer.content
        if content.lstrip()[:9].lower() == b"<!doctype":
            yield Shown(_name(address), path, site.boss, answer.status_code)


def _name(address: str) -> str:
    words = [part.partition(":")[2] if part.startswith("<") else part for part in address.split("/")]
    return "-".join(word.strip(">") for word in words if word)


def _runs_by_state(site: SampleSite) -> Iterator[Shown]:
    for state, run in site.runs.items():
        yield Shown(f"run-{state}", f"/runs/{run.pk}", site.boss)
    yield Shown("run-viewed", f"/runs/{site.runs['approval'].pk}", site.viewer)
    yield Shown("run-older", f"/runs/{site.runs['long'].pk}?event=40", site.boss)
    yield Shown("run-no-errors", f"/runs/{site.runs['completed'].pk}?show=errors", site.boss)
    yield Shown("run-tree", f"/runs/{site.runs['parent'].pk}/tree", site.boss)
    yield Shown("run-invalid", f"/runs/{site.runs['completed'].pk}?show=nothing", site.boss, 400)


def _lists(site: SampleSite) -> Iterator[Shown]:
    here, empty = f"/p/{site.project.slug}", f"/p/{site.empty.slug}"
    yield Shown("runs-filtered", f"{here}/runs?status=failed", site.boss)
    yield Shown("runs-none-match", f"{here}/runs?text={LONG_WORD[:80]}", site.boss)
    yield Shown("search-found", f"{here}/search?q=compiler", site.boss)
    yield Shown("search-nothing", f"{here}/search?q={LONG_WORD[:80]}", site.boss)
    for name in ("runs", "agents", "flows", "approvals", "imports", "ingest", "alerts", "settings/sinks"):
        yield Shown(f"empty-{name.replace('/', '-')}", f"{empty}/{name}", site.boss)
    yield Shown("runs-viewed", f"{here}/runs", site.viewer)


def _of_no_project(site: SampleSite) -> Iterator[Shown]:
    yield Shown("login", "/login", None)
    yield Shown("approvals-everywhere", "/approvals", site.boss)
    yield Shown("system", "/system", site.boss)
    yield Shown("not-found", "/nothing/here", site.boss, 404)
    yield Shown("not-found-in-project", "/p/alpha/agents/no-such-agent", site.boss, 404)
    yield Shown("forbidden", "/p/alpha/settings/redaction", site.viewer, 403)
    yield Shown("admin", "/admin/", site.boss)
    yield Shown("admin-runs", "/admin/runs/agentrun/", site.boss)


def shown_components(group: str, superuser: User) -> Iterator[Shown]:
    """The components of a group with every kind of content. They need no site with something in it."""
    for kind in ContentKind:
        yield Shown(f"components-{group}-{kind}", f"/components/{group}?content={kind}", superuser)
