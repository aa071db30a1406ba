"""The login form: Django's, with a limit on failures that tells nobody anything."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest

from agentops.http.client_addresses import network_of
from agentops.projects.audit import AuditAction, record
from agentops.projects.login.known_browsers import known_browser
from agentops.projects.login.throttle import Slowdown, Throttle
from agentops.projects.requests import address_of

#: Longer ones are refused before anything is computed from them.
MAX_PASSWORD = 1024
#: By user name and address, or user name and known browser.
FAILURES = Throttle("login", limit=5, seconds=15 * 60)
#: By user name over all addresses: guesses from many of them come down to one in five minutes. Browsers in which the
#: user has signed in before are not counted here, so that guessing locks nobody out of their own account.
ACCOUNT_FAILURES = Slowdown("login-account", free=20, seconds=24 * 3600, longest_pause=5 * 60)
#: One text for a wrong password, an unknown name, a person switched off and too many tries.
REFUSED = "Wrong user name or password, or too many tries: after five failures wait 15 minutes."


class LoginForm(AuthenticationForm):
    error_messages = {"invalid_login": REFUSED, "inactive": REFUSED}
    password = forms.CharField(
        max_length=MAX_PASSWORD,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "maxlength": None}),
    )

    def clean(self) -> dict[str, Any]:
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if name is None or not password:
            return self.cleaned_data
        assert self.request is not None
        tries = _Tries(self.request, name.casefold())
        if tries.are_spent():
            # As slow as a try that counts: the right password must not answer otherwise than a wrong one.
            get_user_model()().set_password(password)
            raise self.get_invalid_login_error()
        try:
            cleaned = super().clean()
        except forms.ValidationError:
            _note_failure(name, address_of(self.request))
            raise
        tries.forget()
        return cleaned


class _Tries:
    """The tries that one request counts among."""

    def __init__(self, request: HttpRequest, name: str) -> None:
        self._name = name
        self._origin = network_of(address_of(request))
        self._browser = known_browser(request, name)

    def are_spent(self) -> bool:
        """Count this try; return whether it is one too many."""
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
    """Written for unknown names too, so that both take the same time; but what was typed may be a password."""
    account = get_user_model().objects.filter(username=name).first()
    actor = f"user:{name}" if account else "anonymous"
    record(actor, AuditAction.LOGIN_FAILED, project=None, obj=account, ip=address)
