"""A user's own account: password, other sessions, and projects."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.debug import sensitive_post_parameters

from agentops.accounts.access import Principal, projects_for
from agentops.accounts.audit import AuditAction, record
from agentops.accounts.login.addresses import is_verified
from agentops.accounts.login.form import MAX_PASSWORD
from agentops.accounts.login.sessions import end_sessions
from agentops.accounts.models import Membership
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.address_pages import TOO_MANY, TRIES
from agentops.accounts.settings_pages.page_parts import MAX_CHOICES, see_other
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
        return _page(request, principal, OwnPasswordForm(request.user))
    form = OwnPasswordForm(request.user, request.POST)
    if not form.is_valid():
        response = _page(request, principal, form, status=429 if form.retry_after_s else 422)
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


def _page(request: HttpRequest, principal: Principal, form: OwnPasswordForm, *, status: int = 200) -> HttpResponse:
    own = Membership.objects.filter(user=principal.user_id).select_related("project")
    context: dict[str, Any] = {
        "form": form,
        "is_verified": is_verified(request.user),
        "memberships": own.order_by("project__name", "pk")[:MAX_CHOICES],
        "projects": projects_for(principal).filter(archived_at=None).order_by("name", "pk")[:MAX_CHOICES],
    }
    return render(request, "accounts/account.html", context, status=status)
