"""Every page of the site in every state: its URL, its user, and the name of its screenshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page

from tests.support.components.sample_content import ContentKind
from tests.support.gallery.sample_site import LONG_WORD, SampleSite
from tests.support.web.addresses import PAGES, filled, parts_of

#: Endless streams are not pages.
STREAMS = ("/stream",)


class Shown(NamedTuple):
    """A page. `name` names its screenshots; `person` is the signed-in user, or None."""

    name: str
    path: str
    person: User | None
    status: int = 200
    #: An action on the page before the screenshot.
    act: Callable[[Page], None] = lambda page: None


def shown_pages(site: SampleSite) -> Iterator[Shown]:
    """Yield a page for every URL, and for every state that one URL may show."""
    yield from _by_address(site)
    yield from _runs_by_state(site)
    yield from _lists(site)
    yield from _settings(site)
    yield from _of_no_project(site)


def _by_address(site: SampleSite) -> Iterator[Shown]:
    """Yield the pages of all URLs that respond with a whole page, rather than a fragment or a file."""
    client = Client()
    client.force_login(site.boss)
    parts = parts_of(site.runs["completed"]) | {"uuid:flow_run_id": site.flow_run.pk, "uuid:sink_id": site.sink.pk}
    parts |= {"slug:flow": "review", "slug:agent": "reviewer"}
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
    of = {state: f"/runs/{run.pk}" for state, run in site.runs.items()}
    for state, path in of.items():
        if state != "completed":  # `_by_address` covers the completed run, with its tabs.
            yield Shown(f"run-{state}", path, site.boss)
    yield Shown("run-viewed", of["approval"], site.viewer)
    yield Shown("run-older", f"{of['long']}?event=40", site.boss)
    yield Shown("run-before", f"{of['completed']}?before=20", site.boss)
    yield Shown("run-no-errors", f"{of['completed']}?show=errors", site.boss)
    yield Shown("run-errors", f"{of['failed']}/errors", site.boss)
    yield Shown("run-replay", f"{of['completed']}/replay?seq=9", site.boss)
    yield Shown("run-tree", f"{of['parent']}/tree", site.boss)
    yield Shown("run-invalid", f"{of['completed']}?show=nothing", site.boss, 400)
    yield Shown("flow-run-earlier", f"/flow-runs/{site.flow_run.pk}/state?seq=4", site.boss)


def _lists(site: SampleSite) -> Iterator[Shown]:
    here, empty = f"/p/{site.project.slug}", f"/p/{site.empty.slug}"
    yield Shown("runs-filtered", f"{here}/runs?status=failed", site.boss)
    columns = "columns=agent,labels,created,cost"
    yield Shown("runs-columns", f"{here}/runs?sort=cost&reason=&cost_max=5&{columns}", site.boss)
    yield Shown("runs-none-match", f"{here}/runs?text={LONG_WORD[:80]}", site.boss)
    yield Shown("search-found", f"{here}/search?q=compiler", site.boss)
    yield Shown("search-nothing", f"{here}/search?q={LONG_WORD[:80]}", site.boss)
    yield Shown("runs-viewed", f"{here}/runs", site.viewer)
    for name in ("settings", "settings/delete"):
        yield Shown(f"archived-{name.replace('/', '-')}", f"/p/{site.archived.slug}/{name}", site.boss)
    for upload in site.uploads:
        upload.refresh_from_db()
        yield Shown(f"import-{upload.state}", f"{here}/imports/{upload.pk}", site.boss)
    yield Shown("empty-overview", empty, site.boss)
    for name in ("runs", "agents", "flows", "schedules", "approvals", "imports", "ingest", "alerts"):
        yield Shown(f"empty-{name}", f"{empty}/{name}", site.boss)
    for name in ("sinks", "alerts", "redaction", "approvals"):
        yield Shown(f"empty-settings-{name}", f"{empty}/settings/{name}", site.boss)
    yield Shown("empty-prices", f"{empty}/prices", site.boss)


def _settings(site: SampleSite) -> Iterator[Shown]:
    here = f"/p/{site.project.slug}"
    yield Shown("agent-as-text", f"{here}/agents/reviewer/edit?as=text", site.boss)
    yield Shown("agent-differences", f"{here}/agents/reviewer/versions?a=1&b=2", site.boss)
    yield Shown("member-removed", f"{here}/settings/members/remove?user=bob", site.boss)
    yield Shown("retention-preview", f"{here}/settings/retention?days=30", site.boss)
    yield Shown("alert-rule-new", f"{here}/settings/alerts?kind=error_rate", site.boss)
    yield Shown("alert-rule-changed", f"{here}/settings/alerts?rule={site.alert_rule.pk}", site.boss)
    yield Shown("schedule-new", f"{here}/new-schedule", site.boss)
    yield Shown("schedule-enabled", f"{here}/schedules/{site.schedule.pk}", site.boss)
    yield Shown("schedule-viewed", f"{here}/schedules", site.viewer)
    yield Shown("sink-new", f"{here}/settings/new-sink?kind=langfuse_otlp", site.boss)


def _of_no_project(site: SampleSite) -> Iterator[Shown]:
    yield Shown("login", "/login", None)
    yield Shown("invitation", site.invitation, None)
    yield Shown("start", "/", site.boss)
    yield Shown("projects", "/projects", site.boss)
    yield Shown("account", "/account", site.boss)
    yield Shown("approvals-everywhere", "/approvals", site.boss)
    yield Shown("system", "/system", site.boss)
    yield Shown("not-found", "/nothing/here", site.boss, 404)
    yield Shown("not-found-in-project", "/p/alpha/agents/no-such-agent", site.boss, 404)
    yield Shown("forbidden", "/p/alpha/settings/redaction", site.viewer, 403)
    yield Shown("admin", "/admin/", site.boss)
    yield Shown("admin-runs", "/admin/runs/agentrun/", site.boss)


def shown_components(group: str, superuser: User) -> Iterator[Shown]:
    """Yield the components of a group with every kind of content. They need no sample site."""
    for kind in ContentKind:
        yield Shown(f"components-{group}-{kind}", f"/components/{group}?content={kind}", superuser)
