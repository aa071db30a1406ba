"""A user's own account: password, other sessions and projects; and its e-mail address, verified by a link."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from agentops.accounts.access import Principal, projects_for
from agentops.accounts.audit import AuditAction, record
from agentops.accounts.errors import AddressLinkInvalid, AddressTaken, InvalidEmail
from agentops.accounts.login import addresses
from agentops.accounts.login.forms import MAX_PASSWORD, TOO_MANY, TRIES, PasswordForm
from agentops.accounts.login.sessions import end_sessions
from agentops.accounts.login.throttle import TooManyAttempts
from agentops.accounts.models import Membership
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import MAX_CHOICES, see_other, sentence
from agentops.base.http.methods import require_http_methods, require_POST


class OwnPasswordForm(PasswordChangeForm):
    """Django's form, with a limit on attempts and on the length of passwords to hash."""

    TEXTS = (
        ("Old password", ""),
        ("New password", "At least 12 characters, and not a common password. It logs you out everywhere else."),
        ("New password again", "To find typing errors."),
    )
    #: Seconds until another attempt is allowed, if this one was refused without checking the password.
    retry_after_s = 0

    def __init__(self, user: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(user, *args, **kwargs)
        for field, (label, help_text) in zip(self.fields.values(), self.TEXTS, strict=True):
            field.widget.attrs.pop("autofocus", None)
            field.label, field.help_text = label, help_text

    def clean_old_password(self) -> str:
        """Check the old password, unless there were too many attempts or it is too long to hash."""
        self.retry_after_s = TRIES.wait_s(str(self.user.pk))
        if self.retry_after_s:
            raise forms.ValidationError(TOO_MANY)
        if len(self.cleaned_data["old_password"]) > MAX_PASSWORD:
            raise forms.ValidationError(self.error_messages["password_incorrect"])
        old = super().clean_old_password()
        TRIES.forget(str(self.user.pk))
        return old

    def clean_new_password1(self) -> str:
        """Refuse passwords that a login would refuse."""
        password: str = self.cleaned_data["new_password1"]
        if len(password) > MAX_PASSWORD:
            raise forms.ValidationError(f"A password can have at most {MAX_PASSWORD} characters.")
        return password


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    """Show the account, or change the password. Status 422 with errors."""
    principal = principal_of(request)
    if request.method != "POST":
        return _account_page(request, principal, OwnPasswordForm(request.user))
    form = OwnPasswordForm(request.user, request.POST)
    if not form.is_valid():
        response = _account_page(request, principal, form, status=429 if form.retry_after_s else 422)
        if form.retry_after_s:
            response.headers["Retry-After"] = str(form.retry_after_s)
        return response
    with transaction.atomic():
        user = form.save()
        after = {"name": user.get_username(), "fields": ["password"]}
        record(principal, AuditAction.USER_CHANGED, project=None, obj=user, after=after)
    # This invalidates the other sessions, which contain the hash of the old password.
    update_session_auth_hash(request, user)
    messages.success(request, "Password changed. You are logged out everywhere else.")
    return see_other("account")


@require_POST
def end_other_sessions(request: HttpRequest) -> HttpResponse:
    """End all sessions of the user but this one."""
    principal = principal_of(request)
    assert request.user.is_authenticated  # principal_of has checked it
    ended = end_sessions(request.user, actor=principal, keep=request.session.session_key)
    text = f"Logged out of {ended} other session{'' if ended == 1 else 's'}." if ended else "There is no other session."
    messages.success(request, text)
    return see_other("account")


def _account_page(
    request: HttpRequest, principal: Principal, form: OwnPasswordForm, *, status: int = 200
) -> HttpResponse:
    own = Membership.objects.filter(user=principal.user_id).select_related("project")
    context: dict[str, Any] = {
        "form": form,
        "is_verified": addresses.is_verified(request.user),
        "has_second_factor": settings.AGENTOPS_SECOND_FACTOR,
        "memberships": own.order_by("project__name", "pk")[:MAX_CHOICES],
        "projects": projects_for(principal).filter(archived_at=None).order_by("name", "pk")[:MAX_CHOICES],
    }
    return render(request, "accounts/account.html", context, status=status)


# --- The e-mail address ---


class AddressForm(PasswordForm):
    """A new address, and the password: mails to the address allow decisions without a login."""

    email = forms.CharField(
        label="New e-mail address",
        max_length=254,
        required=False,
        widget=forms.EmailInput(attrs={"autocomplete": "email"}),
        help_text="Leave empty to remove the address.",
    )

    def clean_email(self) -> str:
        """Return the address in lower case, or an empty text."""
        text: str = self.cleaned_data["email"]
        try:
            return addresses.clean_email(text) if text.strip() else ""
        except InvalidEmail as refusal:
            raise forms.ValidationError(sentence(refusal)) from None


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def change_address(request: HttpRequest) -> HttpResponse:
    """Show the address, or change it and send a link to it. Status 422 with errors, 429 after too many."""
    principal, user = _signed_in(request)
    if request.method != "POST":
        return _address_page(request, AddressForm(user=user, initial={"email": user.email}))
    form = AddressForm(request.POST, user=user)
    if not form.is_valid():
        response = _address_page(request, form, status=429 if form.retry_after_s else 422)
        if form.retry_after_s:
            response.headers["Retry-After"] = str(form.retry_after_s)
        return response
    addresses.change_address(user, form.cleaned_data["email"], actor=principal)
    messages.success(request, "E-mail address saved." if user.email else "E-mail address removed.")
    if user.email and settings.AGENTOPS_EMAIL:
        _send_link(request, user)
    return see_other("address")


@require_POST
def send_address_link(request: HttpRequest) -> HttpResponse:
    """Send a link to the address, unless it is verified, and show a message."""
    _, user = _signed_in(request)
    if addresses.is_verified(user):
        messages.info(request, "Your e-mail address is already verified.")
    else:
        _send_link(request, user)
    return see_other("address")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def verify_address(request: HttpRequest, token: str) -> HttpResponse:
    """Show the link of an e-mail, and verify the address by POST, because mail scanners open links too."""
    principal, user = _signed_in(request)
    try:
        if request.method != "POST":
            return render(request, "accounts/verify_address.html", {"email": addresses.check_link(user, token)})
        email = addresses.verify(user, token, actor=principal)
    except (AddressLinkInvalid, AddressTaken) as refusal:
        context = {"refusal": sentence(refusal), "can_send": settings.AGENTOPS_EMAIL and user.email}
        return render(request, "accounts/verify_address.html", context, status=refusal.status)
    messages.success(request, f"E-mail address {email} verified.")
    return see_other("address")


def _signed_in(request: HttpRequest) -> tuple[Principal, User]:
    principal = principal_of(request)
    assert isinstance(request.user, User)  # principal_of has checked it
    return principal, User.objects.get(pk=request.user.pk)


def _send_link(request: HttpRequest, user: User) -> None:
    """Send a link, and show a message to the user."""
    try:
        is_sent = addresses.send_link(user)
    except TooManyAttempts as refusal:
        messages.error(request, f"No link was sent: {refusal}.")
        return
    if is_sent:
        messages.success(request, f"A link was sent to {user.email}. Open it within 24 hours.")
    else:
        reason = "the mail server did not take it" if settings.AGENTOPS_EMAIL else "no mail server is configured"
        messages.error(request, f"No link was sent: {reason}.")


def _address_page(request: HttpRequest, form: AddressForm, *, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "person": form.user,
        "is_verified": addresses.is_verified(form.user),
        "has_email": settings.AGENTOPS_EMAIL,
    }
    return render(request, "accounts/address.html", context, status=status)
