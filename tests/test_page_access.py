"""Access to the pages: every URL × every role × own, foreign and unknown objects.

The URLs come from the URL configuration, so a new page fails here until the table lists its permissions.
"""

from __future__ import annotations

import re

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver

from agentops.accounts.access import SYSTEM
from agentops.accounts.keys import create_key
from agentops.accounts.memberships import change_role, remove_member
from agentops.accounts.models import Project, Role
from runs.models import AgentRun
from tests.support.addresses import (
    MANAGE,
    NOWHERE,
    OPERATE,
    PAGES,
    UNKNOWN,
    addresses,
    bare,
    filled,
    headers_of,
    parts_of,
)
from tests.support.factories import drive, make_agent, make_person, make_project, make_run, with_key
from tests.support.second_pass import cases

#: Pages outside projects, tested in tests/accounts/test_login.py, tests/test_security_headers.py,
#: tests/accounts/settings_pages, tests/accounts/test_addresses.py, tests/runs/pages/test_approvals_page.py,
#: tests/runs/pages/test_annotations.py, tests/runs/pages/test_system_page.py,
#: tests/web/test_mcp.py and tests/runs/telemetry/test_metrics.py.
OF_NO_PROJECT = {
    *("", "metrics", "system", "login", "logout", "csp-report", "admin/login/", "approvals", "approvals/<str:token>"),
    *("mcp", "account", "account/sessions/end", "projects", "invitations/<str:token>"),
    *("account/address", "account/address/send", "account/address/verify/<str:token>"),
    "shared/<str:token>",
}
#: URLs with a separate authentication.
ELSEWHERE = ("admin/", "api/", "v1/")

#: The role with all permissions comes first: see tests/support/second_pass.py.
EVERYONE = ["admin", "anonymous", "outsider", "viewer", "operator", "superuser"]
READERS = {"viewer", "operator", "admin", "superuser"}
OPERATORS = READERS - {"viewer"}
ADMINS = OPERATORS - {"operator"}
METHODS = ["GET", "POST"]
#: Statuses of pages that need more input than the URL.
ANSWERS = {
    "/new": {"GET": 302, "POST": 422},  # the form has a separate URL
    "/views/<uuid:view_id>": {"POST": 404},  # the view belongs to another user
    "/notifications/read": {"POST": 400},
    "/approvals/dismiss": {"POST": 400},
    "/imports": {"POST": 422},  # the form has no file
    "/redaction/add": {"POST": 400},
    "/redaction/model-input": {"POST": 400},
    "/redaction/remove": {"POST": 400},
    "/redaction/test": {"POST": 422},
    "/fork": {"POST": 422},
    "/settings": {"POST": 422},
    "/settings/archive": {"POST": 422},
    "/settings/telemetry": {"POST": 400},  # neither on nor off is chosen
    "/settings/delete": {"POST": 422},  # the confirmation is missing
    "/members/add": {"POST": 422},
    "/members/role": {"POST": 400},
    "/members/remove": {"GET": 400, "POST": 400},  # no member is named
    "/invitations/withdraw": {"POST": 400},
    "/keys/create": {"POST": 422},
    "<uuid:key_id>/rotate": {"POST": 422},
    "/settings/approvals": {"POST": 400},  # the version of the rules is missing
    "/alerts/mute": {"POST": 400},
    "/alerts/save": {"POST": 400},
    "/alerts/switch": {"POST": 400},
    "/alerts/remove": {"POST": 400},
    "/alerts/test": {"POST": 400},
    "<uuid:schedule_id>/edit": {"POST": 422},
    "<uuid:schedule_id>/switch": {"POST": 400},
    "<uuid:schedule_id>/run": {"POST": 400},  # the form needs a token
    "/new-schedule": {"POST": 422},
    "/prices/set": {"POST": 422},
    "/prices/remove": {"POST": 400},
    "<uuid:sink_id>/edit": {"POST": 422},
    "<uuid:sink_id>/switch": {"POST": 400},
    "<uuid:sink_id>/resend": {"POST": 400},
    "<uuid:sink_id>/delete": {"POST": 400},  # no sink is named
    "/new-sink": {"POST": 400},
    "/edit": {"POST": 400},
    "/new-agent": {"POST": 422},
    "/new-flow": {"POST": 422},
    "/new-flow/drawing": {"POST": 200},  # answers with the validation errors
    "/start": {"GET": 302, "POST": 422},  # the form has a separate URL
    "flow_run_id>/fixtures": {"GET": 409},  # no agent node ran
    "flow_run_id>/changes": {"GET": 286},  # the flow run has ended; 286 stops the polling
    "/runs/resume": {"POST": 200},  # no run is named, so the page shows none
}


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def foreign(db: None) -> Project:
    return make_project("beta")


@pytest.fixture
def run(project: Project) -> AgentRun:
    return drive(make_run(make_agent(project)))


@pytest.fixture
def their_run(foreign: Project) -> AgentRun:
    return drive(make_run(make_agent(foreign)))


def enter(who: str, project: Project, foreign: Project) -> Client:
    client = Client()
    if who == "superuser":
        client.force_login(User.objects.create_superuser("boss"))
    elif who == "outsider":
        client.force_login(make_person(foreign, Role.ADMIN))
    elif who != "anonymous":
        client.force_login(make_person(project, Role(who)))
    return client


def expected(address: str, method: str, who: str) -> set[int]:
    """Return the expected statuses for an existing object."""
    served = PAGES[address].get(method)
    if served is None:
        return {405}
    if who == "anonymous":
        return {302}
    if who == "outsider":
        return {404}
    if (served == OPERATE and who not in OPERATORS) or (served == MANAGE and who not in ADMINS):
        return {403}
    special = next((statuses for ending, statuses in ANSWERS.items() if address.endswith(ending)), {})
    return {special.get(method, 303 if method == "POST" else 200)}


# --- The whole table ---------------------------------------------------------------------------------------------


def test_every_url_is_in_the_table() -> None:
    known = {
        address
        for address in addresses(get_resolver("agentops.urls").url_patterns)
        if not address.startswith(ELSEWHERE)
    }

    assert known - OF_NO_PROJECT == set(PAGES)


@pytest.mark.parametrize("who", EVERYONE)
def test_each_role_gets_the_expected_status(who: str, project: Project, foreign: Project, run: AgentRun) -> None:
    """The run has ended, so no request affects the next one.

    Unsupported methods are refused before authentication (tests/test_bad_requests.py).
    """
    parts = parts_of(run)
    urls = {address: filled(address, parts) for address in PAGES}
    client = enter(who, project, foreign)
    responses = {
        (address, method): client.generic(method, url)
        for address, url in urls.items()
        for method in (METHODS if who == "anonymous" else PAGES[address])
    }
    answers = {request: response.status_code for request, response in responses.items()}
    # The header of every project page links to the project settings, for users who may change them.
    pages = {
        request: page
        for request, page in responses.items()
        # Error pages have the header of a project of the user.
        if page.status_code < 400 and b'aria-label="Project"' in getattr(page, "content", b"")
    }
    linked = {address for (address, _), page in pages.items() if b'<a href="/p/alpha/settings"' in page.content}
    assert linked == ({address for address, _ in pages} if who in ADMINS else set())
    assert len(pages) > 10 or who not in READERS

    wrong = {key: status for key, status in answers.items() if status not in expected(*key, who)}
    assert not wrong, who
    assert AgentRun.objects.get(pk=run.pk).status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("who", ["viewer", "admin"])
def test_a_foreign_object_looks_like_an_unknown_one(
    who: str, project: Project, foreign: Project, their_run: AgentRun
) -> None:
    """The responses are identical except for the request ID, including the error code.

    An operator has the same rights as either a viewer or an admin.
    """
    client = enter(who, project, foreign)
    theirs = parts_of(their_run)
    with time_machine.travel(1_795_000_000, tick=False):
        for address, served in PAGES.items():
            for method in served:
                of_others = client.generic(method, filled(address, theirs))
                of_nobody = client.generic(method, filled(address, NOWHERE))
                assert (of_others.status_code, of_nobody.status_code) == (404, 404), address
                assert bare(of_others) == bare(of_nobody), address
                assert headers_of(of_others) == headers_of(of_nobody), address


@pytest.mark.slow
def test_pages_do_not_depend_on_the_content_of_another_project(
    project: Project, foreign: Project, run: AgentRun
) -> None:
    client = enter("admin", project, foreign)
    parts = parts_of(run)
    urls = [filled(address, parts) for address, served in PAGES.items() if "GET" in served]
    urls.append(f"/p/alpha/runs/new?form={UNKNOWN}")

    def seen() -> list[str]:
        with time_machine.travel(1_795_000_000, tick=False):
            return [re.sub(SECRETS, "", bare(client.get(url))) for url in urls]

    before = seen()
    agent = make_agent(foreign, slug="theirs")
    for _ in range(3):
        drive(make_run(agent))

    assert seen() == before


#: Parts that differ between two renderings of a page: CSRF tokens and form IDs.
SECRETS = r'name="csrfmiddlewaretoken" value="\w+"|"X-CSRFToken": "\w+"|name="(token|key)" value="[0-9a-f-]+"'


# --- Invalid access ----------------------------------------------------------------------------------------------


def test_a_page_of_a_run_refuses_ids_of_another_run(project: Project, foreign: Project, run: AgentRun) -> None:
    """Both runs are in one project: the message or call must belong to the run in the URL."""
    client = enter("admin", project, foreign)
    other = parts_of(drive(make_run(run.agent)))
    mixed = {**parts_of(run), "uuid:message_id": other["uuid:message_id"], "uuid:call_id": other["uuid:call_id"]}

    for address, served in PAGES.items():
        if "message_id" in address or ("call_id" in address and "GET" in served):
            assert client.get(filled(address, mixed)).status_code == 404
    resolve = filled("runs/<uuid:run_id>/calls/<uuid:call_id>/resolve", mixed)
    assert client.post(resolve, {"choice": "retry"}).status_code == 404


def test_an_api_key_opens_no_page(project: Project, run: AgentRun) -> None:
    client, parts = Client(headers=with_key(project, "read", "write")), parts_of(run)

    for address, served in PAGES.items():
        for method in served:
            assert client.generic(method, filled(address, parts)).status_code == 302


def test_an_api_key_does_not_replace_a_session(project: Project, foreign: Project, run: AgentRun) -> None:
    plain = create_key(project, name="k", scopes=["read"], actor=SYSTEM).plain
    outsider = enter("outsider", project, foreign)

    assert outsider.get(f"/runs/{run.pk}", headers={"Authorization": f"Bearer {plain}"}).status_code == 404


def test_a_changed_role_applies_to_the_next_request(project: Project, run: AgentRun) -> None:
    bob = make_person(project, Role.OPERATOR)
    client = Client()
    client.force_login(bob)
    assert client.get("/p/alpha/runs/new", follow=True).status_code == 200

    change_role(project, bob, Role.VIEWER, actor=SYSTEM)
    assert client.get("/p/alpha/runs/new").status_code == 403
    assert client.post(f"/runs/{run.pk}/stop").status_code == 403
    assert client.get(f"/runs/{run.pk}").status_code == 200

    remove_member(project, bob, actor=SYSTEM)
    assert client.get(f"/runs/{run.pk}").status_code == 404

    User.objects.filter(pk=bob.pk).update(is_active=False)
    assert client.get(f"/runs/{run.pk}").status_code == 302


def test_an_anonymous_user_returns_to_the_same_page_after_login(db: None) -> None:
    def sent_to(method: str, url: str, **headers: str) -> str:
        return str(Client().generic(method, url, headers=headers)["Location"])

    assert sent_to("GET", "/p/alpha/runs?status=paused") == "/login?next=%2Fp%2Falpha%2Fruns%3Fstatus%3Dpaused"
    # After a form was submitted, the login leads back to the page of the form, not to its target URL.
    page = f"http://testserver/runs/{UNKNOWN}?event=3"
    assert sent_to("POST", f"/runs/{UNKNOWN}/stop", Referer=page) == f"/login?next=%2Fruns%2F{UNKNOWN}%3Fevent%3D3"
    for elsewhere in ("https://evil.example/runs", "//evil.example", "javascript:alert(1)", ""):
        assert sent_to("POST", f"/runs/{UNKNOWN}/stop", Referer=elsewhere) == "/login?next=%2F"


HOSTILE = ["/p/ALPHA/runs", "/p/alpha%00/runs", "/p/alpha%0A/runs", "/p/../admin/runs", "/p/" + "a" * 5000 + "/runs"]
HOSTILE += ["/runs/{01a1f86c-1b1a-72f0-b808-0c8f1390c3f4}", "/runs/01A1F86C-1B1A-72F0-B808-0C8F1390C3F4"]
HOSTILE += ["/runs/01a1f86c1b1a72f0b8080c8f1390c3f4", f"/runs/{UNKNOWN}/events/-1", f"/runs/{UNKNOWN}/"]
HOSTILE += [f"/runs/{UNKNOWN}/events/9999999999999999999999"]


def test_malformed_urls_are_not_found(project: Project, foreign: Project) -> None:
    client = enter("superuser", project, foreign)

    for url in cases(HOSTILE):
        assert client.get(url).status_code == 404, url
