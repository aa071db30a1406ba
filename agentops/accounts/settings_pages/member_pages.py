"""The page with all projects, on which superusers create projects, and the page with the members of a project."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts import invitations, memberships
from agentops.accounts.access import Action, EnteredProject, Principal, enter, may, projects_for
from agentops.accounts.errors import InvitationNotFound, MemberNotFound, RoleRequired
from agentops.accounts.login.addresses import is_email, is_verified
from agentops.accounts.memberships import create_owned_project
from agentops.accounts.models import Invitation, Membership, Role
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import (
    MAX_CHOICES,
    MEMBER_FIELDS,
    PROJECT_FIELDS,
    NewMemberForm,
    NewProjectForm,
    add_refusal,
    first_page,
    id_of,
    member_form,
    see_other,
    settings_context,
)
from agentops.base import database_clock
from agentops.base.http.methods import require_http_methods, require_POST, require_safe
from agentops.base.refusals import Conflict, Invalid, InvalidQuery, Refusal

PAGE_SIZE = 100


@require_http_methods(["GET", "HEAD", "POST"])
def projects(request: HttpRequest) -> HttpResponse:
    """Show a page of the projects that the user may see, by slug, or create one. Status 422 with errors."""
    principal = principal_of(request)
    may_create = may(principal, Action.SUPER, None)
    if request.method != "POST":
        return _projects_page(request, principal, NewProjectForm() if may_create else None)
    if not may_create or not request.user.is_authenticated:
        raise RoleRequired("only superusers may create projects")
    form = NewProjectForm(request.POST)
    if form.is_valid():
        try:
            project = create_owned_project(**form.cleaned_data, owner=request.user, actor=principal)
        except (Conflict, Invalid) as refusal:
            add_refusal(form, refusal, PROJECT_FIELDS)
        else:
            messages.success(request, f"Project {project.name} created. You are its admin.")
            return see_other("runs:list", project.slug)
    return _projects_page(request, principal, form, status=422)


def _projects_page(
    request: HttpRequest, principal: Principal, form: NewProjectForm | None, *, status: int = 200
) -> HttpResponse:
    after = request.GET.get("after", "")[:63].replace("\0", "")
    visible = projects_for(principal)
    page, last = first_page(visible.filter(slug__gt=after).order_by("slug"), PAGE_SIZE)
    memberships = Membership.objects.filter(user=principal.user_id, project__in=page)
    roles = dict(memberships.values_list("project", "role"))
    context: dict[str, Any] = {
        "rows": [(project, roles.get(project.pk, "")) for project in page],
        "projects": visible.filter(archived_at=None).order_by("name", "pk")[:MAX_CHOICES],
        "form": form,
        "after": after,
        "next": last.slug if last else "",
        "command": "agentops project create SLUG --name NAME",
    }
    return render(request, "accounts/projects.html", context, status=status)


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of members by user name, and the open invitations."""
    principal = principal_of(request)
    return _page(request, principal, enter(principal, project, Action.MANAGE))


@require_POST
def add(request: HttpRequest, project: str) -> HttpResponse:
    """Add the user with this username, or invite the e-mail address. Status 422 with errors."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    form = member_form(request.POST)
    if form.is_valid():
        try:
            _add(request, principal, entry, form)
        except (Conflict, Invalid, MemberNotFound) as refusal:
            add_refusal(form, refusal, MEMBER_FIELDS)
        else:
            return see_other("members", entry.project.slug)
    return _page(request, principal, entry, form=form, status=422)


@require_POST
def change_role(request: HttpRequest, project: str) -> HttpResponse:
    """Change the role of the member `user` to `role`."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    user = _member(entry, request.POST.get("user", ""))
    try:
        changed = memberships.change_role(entry.project, user, request.POST.get("role", ""), actor=principal)
    except Conflict as refusal:
        messages.error(request, f"Not changed: {refusal}.")
    else:
        messages.success(request, f"{user.get_username()} is {changed.role} now. It takes effect at once.")
    return _after_change(principal, entry)


@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: HttpRequest, project: str) -> HttpResponse:
    """Ask whether to remove the member `user`, or remove them."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    values = request.POST if request.method == "POST" else request.GET
    user = _member(entry, values.get("user", ""))
    if request.method != "POST":
        role = Membership.objects.get(project=entry.project, user=user).role
        context = {"member": user, "role": role, "is_self": user.pk == principal.user_id}
        return render(request, "accounts/remove_member.html", {**settings_context(entry), **context})
    try:
        memberships.remove_member(entry.project, user, actor=principal)
    except Conflict as refusal:
        messages.error(request, f"Not removed: {refusal}.")
    else:
        messages.success(request, f"{user.get_username()} is no longer a member of {entry.project.name}.")
    return _after_change(principal, entry)


@require_POST
def withdraw(request: HttpRequest, project: str) -> HttpResponse:
    """Withdraw the invitation `id`."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    invitation_id = id_of(request.POST.get("id", ""), "id")
    if invitation_id is None:
        raise InvalidQuery("send the ID of the invitation")
    try:
        email = invitations.withdraw(entry.project, invitation_id, actor=principal)
    except InvitationNotFound:
        # The invitation was accepted in the meantime, or the button was clicked twice.
        messages.info(request, "This invitation does not exist any more.")
    else:
        messages.success(request, f"Invitation of {email} withdrawn. Its link is not valid any more.")
    return see_other("members", entry.project.slug)


def _add(request: HttpRequest, principal: Principal, entry: EnteredProject, form: NewMemberForm) -> None:
    """Add a user, or invite an address, and show a message. It does not reveal whether an account has the address."""
    who, role = form.cleaned_data["who"], form.cleaned_data["role"]
    if not is_email(who):
        user = memberships.find_user(who)
        memberships.add_member(entry.project, user, role, actor=principal)
        messages.success(request, f"{user.get_username()} is {role} of {entry.project.name} now.")
        return
    invitation = invitations.invite(entry.project, who, role, actor=principal)
    if invitations.send(invitation):
        messages.success(request, f"Invitation sent to {invitation.email}.")
    else:
        reason = "the mail server did not take it" if settings.AGENTOPS_EMAIL else "no mail server is configured"
        messages.warning(
            request, f"{invitation.email} is invited, but no e-mail was sent: {reason}. Copy the link below."
        )


def _member(entry: EnteredProject, name: str) -> User:
    """Return the member with this username. Raises `MemberNotFound`, or `InvalidQuery` without a name."""
    if not name:
        raise InvalidQuery("send the username of the member")
    return memberships.user_of(entry.project, name)


def _after_change(principal: Principal, entry: EnteredProject) -> HttpResponse:
    """Redirect to the members, or to the home page if the user has lost access to the members by their own change."""
    try:
        enter(principal, entry.project.pk, Action.MANAGE)
    except Refusal:
        return see_other("home")
    return see_other("members", entry.project.slug)


def _page(
    request: HttpRequest,
    principal: Principal,
    entry: EnteredProject,
    *,
    form: NewMemberForm | None = None,
    status: int = 200,
) -> HttpResponse:
    after = request.GET.get("after", "")[:150].replace("\0", "")
    rows = Membership.objects.filter(project=entry.project, user__username__gt=after)
    page, last = first_page(rows.select_related("user__email_address").order_by("user__username"), PAGE_SIZE)
    pending = Invitation.objects.filter(project=entry.project, expires_at__gt=database_clock.now()).order_by("email")
    context: dict[str, Any] = {
        **settings_context(entry),
        "form": form or member_form(),
        "rows": [(row, is_verified(row.user)) for row in page],
        "after": after,
        "next": last.user.get_username() if last else "",
        "roles": Role.values,
        "self_id": principal.user_id,
        "invitations": [(each, request.build_absolute_uri(invitations.url_path(each))) for each in pending],
        "command": f"agentops member add NAME --project {entry.project.slug} --role operator",
    }
    return render(request, "accounts/members.html", context, status=status)
