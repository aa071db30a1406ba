"""A site with objects in every state that a page can show, and its pages with their URLs and users.

Some states are reached only after an action: open menus and rejected forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.test import Client, override_settings
from playwright.sync_api import Page, expect

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import add_member, archive_project
from agentops.accounts.models import Project, Role
from runs.actions import run_actions
from runs.alerts import evaluation
from runs.alerts.alert_rule_changes import add_rule
from runs.models import AgentRun, AlertRule, FileImport, FlowRun, ImportState, Schedule, Sink, SinkCursor
from runs.worker.worker import Worker
from tests.support import project_rows
from tests.support.addresses import PAGES, filled, parts_of
from tests.support.component_samples import ContentKind
from tests.support.engine import make_asking
from tests.support.factories import (
    drive,
    make_agent,
    make_awaiting_approval,
    make_import,
    make_person,
    make_project,
    make_run,
    make_waiting,
)
from tests.support.flows import make_flow_run, play
from tests.support.loopback_servers import receiving
from tests.support.pages import WHOLE
from tests.support.project_rows import (
    SECRET,
    append,
    export,
    external,
    failed,
    fill_schedule,
    make_schedule,
    make_sink,
    make_troubled_run,
)
from tests.support.remote_samples import make_remote_runs
from tests.support.timelines import grow

LONG_WORD = "Compare-the-prices-of-every-supplier-" * 12
LABELS = ["nightly", "host:" + "x" * 59, "branch:main", "more"]
#: A loop, a list, and a question to a person.
REVIEW: dict[str, Any] = {
    "flow_id": "review",
    "title": "Review of two files",
    "inputs": {"type": "object", "properties": {"files": {"type": "array", "examples": [["a.py", "b.py"]]}}},
    "nodes": [
        {"id": "begin", "type": "constant", "value": "x"},
        {"id": "read", "type": "constant", "value": "{{ file }}"},
        {"id": "gate", "type": "human", "question": "Is it right?", "choices": ["yes", "no"]},
        {"id": "end", "type": "constant", "value": "{{ outputs.gate }}", "title": "A title longer than its box"},
    ],
    "edges": [
        {"from": "begin", "to": "read", "forEach": {"in": "inputs.files", "as": "file"}},
        {"from": "read", "to": "gate"},
        {"from": "gate", "to": "read", "when": "outputs.gate == 'no'", "maxIterations": 2},
        {"from": "gate", "to": "end", "when": "outputs.gate == 'yes'"},
    ],
}


@dataclass(frozen=True)
class SampleSite:
    """The objects that URLs need. `runs` has a run for each state; `invitation` is a path."""

    project: Project
    empty: Project
    archived: Project
    boss: User
    viewer: User
    runs: dict[str, AgentRun]
    flow_run: FlowRun
    sink: Sink
    alert_rule: AlertRule
    schedule: Schedule
    uploads: list[FileImport]
    invitation: str


def make_sample_site(worker: Worker) -> SampleSite:
    """Create all objects. Takes a few seconds."""
    project, empty, archived = make_project("alpha"), make_project("nothing-yet"), make_project("of-last-year")
    boss = User.objects.create_superuser("boss")
    for own in (project, empty, archived):
        add_member(own, boss, Role.ADMIN, actor=SYSTEM)
    # First, because driving a flow also drives all queued runs.
    flow_run = play(make_flow_run(REVIEW, project, {"files": ["a.py", "b.py"]}), worker)
    runs = _runs(project)
    _imports(project, runs["completed"])
    for number in range(3):
        fill_schedule(project, number, LONG_WORD)
    schedule = make_schedule(project, name="n" * 63, cron="0 9 * * 1-5", time_zone="Europe/Berlin")
    site = SampleSite(
        project=project,
        empty=empty,
        archived=archived,
        boss=boss,
        viewer=make_person(project, Role.VIEWER),
        runs=runs,
        flow_run=flow_run,
        sink=_sinks(project),
        alert_rule=_alerts(project),
        schedule=schedule,
        uploads=project_rows.make_uploads(project),
        invitation=project_rows.make_members(project),
    )
    project_rows.make_keys(project)
    project_rows.make_notice(runs["long"])
    project_rows.make_old(runs["stopped"])
    # Last, because the rules would redact the objects above, and require approvals in them.
    project_rows.make_rules(project)
    archive_project(archived, actor=SYSTEM)
    return site


def _runs(project: Project) -> dict[str, AgentRun]:
    runs = {
        "completed": drive(make_run(make_agent(project, slug="compiler"))),
        "approval": make_awaiting_approval(project),
        "question": make_asking(project),
        "unknown": make_waiting(project),
        "queued": make_run(make_agent(project, slug="patient"), LONG_WORD, labels=LABELS),
        "running": external(project, "live", {"type": "message.added", "payload": {"role": "user", "content": "Go"}}),
        "session": external(project, "asks", {"type": "run.waiting", "payload": {"reason": "approval"}}),
        "failed": make_troubled_run(project, "failed"),
        "stopped": make_troubled_run(project, "stopped"),
        "hostile": make_run(make_agent(project, slug="hostile"), WHOLE),
        "long": make_run(make_agent(project, slug="long"), "A run with many events"),
        "empty": make_run(make_agent(project, slug="fresh"), "Begin"),
        "limited": drive(make_run(make_agent(project, slug="limited", max_steps=1), "Look into it.")),
        "over-budget": project_rows.make_reviewer(project),
    }
    runs["paused"] = make_run(make_agent(project, slug="paused"), "Wait for me")
    run_actions.pause(SYSTEM, runs["paused"])
    parent = make_run(make_agent(project, slug="parent"), "Prepare the report")
    child = make_run(make_agent(project, slug="child"), LONG_WORD, parent_id=parent.pk)
    make_run(child.agent, "Check the figures", parent_id=child.pk)
    runs["parent"] = parent
    runs |= make_remote_runs(project)
    AgentRun.objects.filter(pk=runs["session"].pk).update(labels=["host:laptop", "folder:" + "a-long-name-" * 12])
    grow(runs["long"], 300, size=400)
    append(runs["hostile"], WHOLE, LONG_WORD * 20)
    return {name: AgentRun.objects.get(pk=run.pk) for name, run in runs.items()}


def _imports(project: Project, run: AgentRun) -> None:
    make_import(run)
    make_import(run, f"<img src=x onerror=alert(1)>{LONG_WORD}.json", state=ImportState.FAILED, run_ids=[])


def _sinks(project: Project) -> Sink:
    """Create a webhook with failed deliveries, and a sink; the receiver has refused both. Return the webhook."""
    with receiving() as receiver, override_settings(AGENTOPS_ALLOW_PRIVATE_SINKS=True):
        webhook = make_sink(project, "webhook", {"url": receiver.url}, name="a" * 63, event_types=["x.note"])
        make_sink(project, "http", {"url": receiver.url}, secrets={"headers": {"X-Key": "a secret of a team"}})
        receiver.answer(400, body=b"x" * 900)
        append(make_run(make_agent(project, slug="reporter"), "Report"), "a", "b")
        export(2)
    SinkCursor.objects.filter(pk=webhook.pk).update(failures=4, last_error="no answer from " + "host" * 60)
    return webhook


def _alerts(project: Project) -> AlertRule:
    """Create a rule, and an alert with the maximum number of visible runs."""
    rule, _ = add_rule(project, {"name": "n" * 63, "kind": "run_failed", "sends_email": False}, by=SYSTEM)
    for number in range(5):
        failed(project, f"{number}-{'x' * 60}")
    evaluation.evaluate()
    return rule


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
    yield Shown("run-changes-split", f"{of['completed']}/changes?view=split", site.boss)
    yield Shown("run-replay", f"{of['completed']}/replay?seq=9", site.boss)
    yield Shown("run-tree", f"{of['parent']}/tree", site.boss)
    yield Shown("run-remote-messages", f"{of['remote-completed']}/messages", site.boss)
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
    yield Shown("agent-remote", f"{here}/agents/remote-running", site.boss)
    yield Shown("agent-remote-form", f"{here}/agents/remote-running/edit", site.boss)
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


Act = Callable[[Page], None]
#: Sets `open` directly: a click would close the other menus, and "Actions" cannot be clicked on a wide screen.
OPEN = """texts => {
  for (const text of texts) {
    const summaries = [...document.querySelectorAll("details > summary")];
    summaries.find(summary => summary.textContent.trim().startsWith(text)).parentElement.open = true;
  }
}"""
OPEN_ALL = """selector => {
  const details = document.querySelectorAll(selector);
  if (!details.length) throw new Error(`nothing to open: ${selector}`);
  details.forEach(each => { each.open = true; });
}"""


def opening(*summaries: str) -> Act:
    """Return an act that opens the first menu whose summary begins with each of these texts."""
    return lambda page: page.evaluate(OPEN, list(summaries))


def opening_all(selector: str) -> Act:
    """Return an act that opens all `details` elements that match."""
    return lambda page: page.evaluate(OPEN_ALL, selector)


def opened_pages(site: SampleSite) -> Iterator[Shown]:
    """Yield the states, each on a separate page. No act changes another page."""
    yield from _of_runs(site)
    yield from _of_decisions(site)
    yield from _of_settings(site)


def _of_runs(site: SampleSite) -> Iterator[Shown]:
    of = {state: f"/runs/{run.pk}" for state, run in site.runs.items()}
    leaf = AgentRun.objects.get(parent_run__parent_run=site.runs["parent"])
    yield Shown("open-run", of["completed"], site.boss, act=opening_all("#timeline details"))
    yield Shown("open-run-resume", of["limited"], site.boss, act=opening("Actions", "Resume"))
    yield Shown("open-run-stop", of["parent"], site.boss, act=opening("Actions", "Stop…"))
    yield Shown("open-run-export", of["queued"], site.boss, act=opening("Export"))
    yield Shown("open-tree-stop", f"{of['parent']}/tree", site.boss, act=opening("Stop…"))
    yield Shown("open-replay-end", f"{of['completed']}/replay?seq=9", site.boss, act=_go_to_the_end)
    yield Shown("open-leaf-stop", f"/runs/{leaf.pk}/tree", site.boss, act=opening("Stop…"))


def _of_decisions(site: SampleSite) -> Iterator[Shown]:
    inbox, everywhere = f"/p/{site.project.slug}/approvals", "/approvals"
    places = {"inbox": inbox, "everywhere": everywhere, "run": f"/runs/{site.runs['approval'].pk}"}
    menus = {"edit": "Edit and approve…", "always": "Always approve…", "deny": "Deny…"}
    for place, path in places.items():
        for name, summary in menus.items():
            yield Shown(f"open-{place}-{name}", path, site.boss, act=opening(summary))
    yield Shown("open-everywhere-projects", everywhere, site.boss, act=opening("Project: "))
    yield Shown("open-inbox-outcome", f"{inbox}?kind=unknown_outcome", site.boss, act=opening("Mark as done…"))


def _of_settings(site: SampleSite) -> Iterator[Shown]:
    here = f"/p/{site.project.slug}"
    rule = f"{here}/settings/alerts?rule={site.alert_rule.pk}"
    yield Shown("open-alerts", f"{here}/alerts", site.boss, act=opening_all("main details"))
    yield Shown("open-alert-rules", f"{here}/settings/alerts", site.boss, act=opening_all("main details"))
    yield Shown("open-alert-rule", rule, site.boss, act=opening_all("main details"))
    yield Shown("open-redaction-test", f"{here}/settings/redaction", site.boss, act=_mask_text)
    yield Shown("open-member-invited", f"{here}/settings", site.boss, act=_add_a_stranger)
    yield Shown("open-sink-refused", f"{here}/settings/new-sink?kind=http", site.boss, act=_save_a_wrong_sink)
    yield Shown("open-schedule-refused", f"{here}/new-schedule", site.boss, act=_save_a_wrong_schedule)


def _go_to_the_end(page: Page) -> None:
    page.keyboard.press("End")
    expect(page.locator("#replay-scrub")).to_have_value(str(page.locator("#replay-scrub").get_attribute("max")))


def _mask_text(page: Page) -> None:
    page.get_by_label("Text", exact=True).fill(f"pw: {SECRET}")
    page.get_by_role("button", name="Mask text").click()
    expect(page.locator(".settings .payload")).to_contain_text("[REDACTED:billing_password:")


def _add_a_stranger(page: Page) -> None:
    page.get_by_label("Username or e-mail address").fill("nobody@example.org")
    page.get_by_role("button", name="Add or invite").click()
    expect(page.get_by_role("button", name="Withdraw invitation of nobody@example.org")).to_be_visible()


def _save_a_wrong_sink(page: Page) -> None:
    page.get_by_label("Name", exact=True).fill("A!")
    page.get_by_label("URL").fill("http://")
    page.get_by_role("button", name="Create sink").click()
    expect(page.get_by_role("alert")).to_contain_text("Correct 2 errors")


def _save_a_wrong_schedule(page: Page) -> None:
    page.get_by_label("Name", exact=True).fill("Nightly")
    page.get_by_label("Agent or flow").select_option(label="player")
    page.get_by_label("Cron expression").fill("0 25 * * *")
    page.get_by_role("button", name="Save schedule").click()
    expect(page.get_by_label("Cron expression")).to_have_attribute("aria-invalid", "true")
