"""The login form: Django's, with a limit on failures that tells nobody anything.

May import Django and this package.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm

from agentops.projects.audit import Audited, record
from agentops.projects.requests import address_of
from agentops.projects.throttle import Throttle

#: Longer ones are refused before anything is computed from them.
MAX_PASSWORD = 1024
FAILURES = Throttle("login", limit=5, seconds=15 * 60)
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
        address = address_of(self.request)
        if FAILURES.spent(name.casefold(), address):
            # As slow as a try that counts: the right password must not answer otherwise than a wrong one.
            get_user_model()().set_password(password)
            raise self.get_invalid_login_error()
        try:
            cleaned = super().clean()
        except forms.ValidationError:
            _note_failure(name, address)
            raise
        FAILURES.forget(name.casefold(), address)
        return cleaned


def _note_failure(name: str, address: str) -> None:
    """Written for unknown names too, so that both take the same time; but what was typed may be a password."""
    account = get_user_model().objects.filter(username=name).first()
    actor = f"user:{name}" if account else "anonymous"
    record(actor, Audited.LOGIN_FAILED, project=None, obj=account, ip=address)
