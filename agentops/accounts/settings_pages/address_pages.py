"""The e-mail address of an account: change it, have a link sent to it, and verify it by that link."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from agentops.accounts.access import Principal
from agentops.accounts.errors import AddressLinkInvalid, AddressTaken, InvalidEmail
from agentops.accounts.login import addresses
from agentops.accounts.login.form import MAX_PASSWORD
from agentops.accounts.login.throttle import Throttle, TooManyAttempts
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other, sentence
from agentops.base.http.methods import require_http_methods, require_POST

#: Attempts to guess a user's password with a stolen session, from any address: to change it, or the e-mail address.
TRIES = Throttle("password-change", limit=5, seconds=15 * 60)
TOO_MANY = "Too many attempts. Wait 15 minutes."


class AddressForm(forms.Form):
    """A new address, and the password: mails to the address allow decisions without a login."""

    email = forms.CharField(
        label="New e-mail address",
        max_length=254,
        required=False,
        widget=forms.EmailInput(attrs={"autocomplete": "email"}),
        help_text="Leave empty to remove the address.",
    )
    password = forms.CharField(
        max_length=MAX_PASSWORD,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "maxlength": None}),
    )
    #: Seconds until another attempt is allowed, if this one was refused without checking the password.
    retry_after_s = 0

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user

    def clean_email(self) -> str:
        """Return the address in lower case, or an empty text."""
        text: str = self.cleaned_data["email"]
        try:
            return addresses.clean_email(text) if text.strip() else ""
        except InvalidEmail as refusal:
            raise forms.ValidationError(sentence(refusal)) from None

    def clean_password(self) -> str:
        """Check the password, unless there were too many attempts."""
        self.retry_after_s = TRIES.wait_s(str(self.user.pk))
        if self.retry_after_s:
            raise forms.ValidationError(TOO_MANY)
        if not self.user.check_password(self.cleaned_data["password"]):
            raise forms.ValidationError("Wrong password.")
        TRIES.forget(str(self.user.pk))
        return ""


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def change(request: HttpRequest) -> HttpResponse:
    """Show the address, or change it and send a link to it. Status 422 with errors, 429 after too many."""
    principal, user = _signed_in(request)
    if request.method != "POST":
        return _page(request, AddressForm(user, initial={"email": user.email}))
    form = AddressForm(user, request.POST)
    if not form.is_valid():
        response = _page(request, form, status=429 if form.retry_after_s else 422)
        if form.retry_after_s:
            response.headers["Retry-After"] = str(form.retry_after_s)
        return response
    addresses.change_address(user, form.cleaned_data["email"], actor=principal)
    messages.success(request, "E-mail address saved." if user.email else "E-mail address removed.")
    if user.email and settings.AGENTOPS_EMAIL:
        _send(request, user)
    return see_other("address")


@require_POST
def send(request: HttpRequest) -> HttpResponse:
    """Send a link to the address. Raise TooManyAttempts."""
    _, user = _signed_in(request)
    if addresses.is_verified(user):
        messages.info(request, "Your e-mail address is already verified.")
    else:
        _send(request, user)
    return see_other("address")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def verify(request: HttpRequest, token: str) -> HttpResponse:
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


def _send(request: HttpRequest, user: User) -> None:
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


def _page(request: HttpRequest, form: AddressForm, *, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "person": form.user,
        "is_verified": addresses.is_verified(form.user),
        "has_email": settings.AGENTOPS_EMAIL,
    }
    return render(request, "accounts/address.html", context, status=status)
