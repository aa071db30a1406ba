"""The login form: Django's form with a limit on failed attempts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest

from agentops.projects.audit import AuditAction, record
from agentops.projects.login.known_browsers import browser_id
from agentops.projects.login.throttle import Slowdown, Throttle
from agentops.projects.requests import address_of, network_of_client

#: Longer passwords are rejected before they are hashed.
MAX_PASSWORD = 1024
#: Per username and network, or per username and known browser.
FAILURES = Throttle("login", limit=5, seconds=15 * 60)
#: Per username over all addresses: slows distributed guessing down to one attempt in 5 minutes. Known browsers of the
#: user are not affected, so that attackers cannot lock users out.
ACCOUNT_FAILURES = Slowdown("login-account", free=20, seconds=24 * 3600, longest_pause=5 * 60)
#: The same message for a wrong password, an unknown username, an inactive user and too many attempts.
REFUSED = "Wrong username or password, or too many attempts. After 5 failed attempts, wait 15 minutes."


class LoginForm(AuthenticationForm):
    """The login form."""

    error_messages = {"invalid_login": REFUSED, "inactive": REFUSED}
    password = forms.CharField(
        max_length=MAX_PASSWORD,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "maxlength": None}),
    )

    def clean(self) -> dict[str, Any]:
        """Authenticate the user. Raise ValidationError for wrong credentials and after too many attempts."""
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if name is None or not password:
            return self.cleaned_data
        assert self.request is not None
        tries = _FailureCounters(self.request, name.casefold())
        if tries.are_spent():
            # Hash as well, so that the response time is the same as for a counted attempt.
            get_user_model()().set_password(password)
            raise self.get_invalid_login_error()
        try:
            cleaned = super().clean()
        except forms.ValidationError:
            _note_failure(name, address_of(self.request))
            raise
        tries.forget()
        return cleaned


class _FailureCounters:
    """The counters of failed attempts that apply to a request."""

    def __init__(self, request: HttpRequest, name: str) -> None:
        self._name = name
        self._origin = network_of_client(request)
        self._browser = browser_id(request, name)

    def are_spent(self) -> bool:
        """Count this attempt and return whether it exceeds a limit."""
        if FAILURES.spent(self._name, self._origin):
            return True
        if self._browser is None:
            return ACCOUNT_FAILURES.spent(self._name)
        return FAILURES.spent(self._name, "browser", self._browser)

    def forget(self) -> None:
        FAILURES.forget(self._name, self._origin)
        if self._browser is None:
            ACCOUNT_FAILURES.forget_one(self._name)
        else:
            FAILURES.forget(self._name, "browser", self._browser)


def _note_failure(name: str, address: str) -> None:
    """Write an audit entry, also for unknown usernames, to take the same time. Those are not stored: they may be
    passwords.
    """
    account = get_user_model().objects.filter(username=name).first()
    actor = f"user:{name}" if account else "anonymous"
    record(actor, AuditAction.LOGIN_FAILED, project=None, obj=account, ip=address)
