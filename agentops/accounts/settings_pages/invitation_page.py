"""The page of an invitation's link: join a project with an existing account, or with a new one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth import get_user_model, login
from django.contrib.auth.forms import BaseUserCreationForm
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.debug import sensitive_post_parameters

from agentops.accounts import invitations
from agentops.accounts.errors import AlreadyMember
from agentops.accounts.invitations import InvitationLink
from agentops.accounts.login.addresses import is_verified, send_link
from agentops.accounts.login.forms import MAX_PASSWORD
from agentops.accounts.login.throttle import TooManyAttempts
from agentops.accounts.models import Invitation
from agentops.accounts.requests import address_of, principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http.methods import require_http_methods

TAKEN = "This name is taken. Choose another one, or log in if it is yours."


class SignUpForm(BaseUserCreationForm):  # type: ignore[type-arg]
    """A new account. It gets the e-mail address of the invitation."""

    class Meta(BaseUserCreationForm.Meta):
        fields = ("username",)

    TEXTS = (
        ("Username", "Letters, digits and @ . + - _"),
        ("Password", "At least 12 characters, and not a common password."),
        ("Password again", "To find typing errors."),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field, (label, help_text) in zip(self.fields.values(), self.TEXTS, strict=True):
            field.label, field.help_text = label, help_text

    def clean_username(self) -> str:
        """Refuse a name that is taken, ignoring case."""
        name: str = self.cleaned_data["username"]
        if get_user_model().objects.filter(username__iexact=name).exists():
            raise forms.ValidationError(TAKEN)
        return name

    def clean_password1(self) -> str:
        """Refuse passwords that a login would refuse."""
        password: str = self.cleaned_data["password1"]
        if len(password) > MAX_PASSWORD:
            raise forms.ValidationError(f"A password can have at most {MAX_PASSWORD} characters.")
        return password


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest, token: str) -> HttpResponse:
    """Show an invitation; accept it with the account of the session, or with a new account."""
    link = invitations.read_link(token)
    if request.method != "POST":
        return _page(request, link.invitation, None if request.user.is_authenticated else SignUpForm())
    if request.user.is_authenticated:
        return _join(request, link)
    form = SignUpForm(request.POST)
    if not form.is_valid():
        return _page(request, link.invitation, form, status=422)
    name, password = form.cleaned_data["username"], form.cleaned_data["password1"]
    try:
        user = invitations.sign_up(link, name, password, ip=address_of(request))
    except IntegrityError:
        form.add_error("username", TAKEN)
        return _page(request, link.invitation, form, status=422)
    login(request, user)
    project = link.invitation.project
    messages.success(request, f"Welcome. You are {link.invitation.role} of {project.name}.")
    if not is_verified(user):
        _send_link(request, user)
    return see_other("runs:list", project.slug)


def _send_link(request: HttpRequest, user: User) -> None:
    """Send the new user a link that verifies the address, unless too many links were sent to it."""
    with suppress(TooManyAttempts):
        if send_link(user):
            messages.info(request, f"To get e-mails, open the link that was sent to {user.email}.")


def _join(request: HttpRequest, link: InvitationLink) -> HttpResponse:
    """Make the logged-in user a member, show a message, and redirect to the project."""
    assert isinstance(request.user, User)  # the caller has checked it
    invitation = link.invitation
    try:
        invitations.accept(link, request.user, actor=principal_of(request))
    except AlreadyMember:
        messages.info(request, f"You are already a member of {invitation.project.name}.")
    else:
        messages.success(request, f"You are {invitation.role} of {invitation.project.name} now.")
    return see_other("runs:list", invitation.project.slug)


def _page(request: HttpRequest, invitation: Invitation, form: SignUpForm | None, *, status: int = 200) -> HttpResponse:
    context = {"invitation": invitation, "inviter": invitation.created_by.partition(":")[2], "form": form}
    return render(request, "accounts/invitation.html", context, status=status)
