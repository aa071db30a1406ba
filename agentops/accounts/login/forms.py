"""The forms that check a password: the login, and the password that a logged-in user repeats. Attempts are limited."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.http import HttpRequest

from agentops.accounts.audit import AuditAction, record
from agentops.accounts.login.hashers import HashersBusy
from agentops.accounts.login.known_browsers import browser_id
from agentops.accounts.login.throttle import Slowdown, Throttle
from agentops.accounts.requests import address_of, network_of_client
from agentops.base.http.request_origins import wide_network_of

#: Longer passwords are rejected before they are hashed.
MAX_PASSWORD = 1024
#: Per username and network, or per username and known browser.
FAILURES = Throttle("login", limit=5, seconds=15 * 60)
#: Per username over all addresses: slows distributed guessing down to one attempt in 5 minutes. Known browsers of the
#: user are not affected, so that attackers cannot lock users out.
ACCOUNT_FAILURES = Slowdown("login-account", free=20, seconds=24 * 3600, longest_pause=5 * 60)
#: Per network over all usernames: slows guessing one password for many names. Known browsers of the user are not
#: affected, so that a neighbour cannot lock an office out. The limit is AGENTOPS_LOGIN_ATTEMPTS.
NETWORK_SECONDS = 15 * 60
#: The same message for a wrong password, an unknown username, an inactive user and too many attempts.
REFUSED = "Wrong username or password, or too many attempts. After 5 failed attempts, wait 15 minutes."


class LoginForm(AuthenticationForm):
    """The login form."""

    error_messages = {"invalid_login": REFUSED, "inactive": REFUSED}
    #: Seconds until another attempt is allowed, if this one was refused without checking the password.
    retry_after_s = 0
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
        attempts = _Attempts(self.request, name.casefold())
        self.retry_after_s = attempts.wait_s()
        if self.retry_after_s:
            # Refused without hashing: the refusal depends on earlier attempts, not on whether the name exists.
            raise self.get_invalid_login_error()
        try:
            cleaned = super().clean()
        except HashersBusy:
            attempts.forget_one()
            raise
        except forms.ValidationError:
            _note_failure(name, address_of(self.request))
            raise
        attempts.forget()
        return cleaned


class _Attempts:
    """The counters of attempts that apply to a request."""

    def __init__(self, request: HttpRequest, name: str) -> None:
        address, browser = address_of(request), browser_id(request, name)
        network = wide_network_of(address, settings.AGENTOPS_LOGIN_IPV4_PREFIX, settings.AGENTOPS_LOGIN_IPV6_PREFIX)
        of_networks = Throttle("login-network", limit=settings.AGENTOPS_LOGIN_ATTEMPTS, seconds=NETWORK_SECONDS)
        #: Counters and the values they count by. The network's counter comes first: an attempt that it refuses does not
        #: count in the others.
        self._counters: list[tuple[Throttle | Slowdown, tuple[str, ...]]] = []
        if browser is None and of_networks.limit:
            self._counters.append((of_networks, (network,)))
        self._counters.append((FAILURES, (name, network_of_client(request))))
        if browser is None:
            self._counters.append((ACCOUNT_FAILURES, (name,)))
        else:
            self._counters.append((FAILURES, (name, "browser", browser)))

    def wait_s(self) -> int:
        """Count this attempt. Return 0, or the seconds to wait if it exceeds a limit."""
        return next((wait for counter, parts in self._counters if (wait := counter.wait_s(*parts))), 0)

    def forget(self) -> None:
        """Reset the counters of the user after a success. Counters shared with other users are reduced by one."""
        for counter, parts in self._counters:
            if counter is FAILURES:
                FAILURES.forget(*parts)
            else:
                counter.forget_one(*parts)

    def forget_one(self) -> None:
        """Subtract this attempt from the counters, because the password was not checked."""
        for counter, parts in self._counters:
            counter.forget_one(*parts)


def _note_failure(name: str, address: str) -> None:
    """Write an audit entry. Unknown usernames cause the same work, but are not stored: they may be passwords."""
    account = get_user_model().objects.filter(username=name).first()
    actor = f"user:{name}" if account else "anonymous"
    record(actor, AuditAction.LOGIN_FAILED, project=None, obj=account, ip=address)


# --- The password of a logged-in user ---

#: Attempts to guess a user's password with a stolen session, on any page and from any address.
TRIES = Throttle("password-change", limit=5, seconds=15 * 60)
TOO_MANY = "Too many attempts. Wait 15 minutes."


class PasswordForm(forms.Form):
    """A form that requires the user's password."""

    password = forms.CharField(
        max_length=MAX_PASSWORD,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "maxlength": None}),
    )
    #: Seconds until another attempt is allowed, if this one was refused without checking the password.
    retry_after_s = 0

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user

    def clean_password(self) -> str:
        """Check the password, unless there were too many attempts."""
        self.retry_after_s = TRIES.wait_s(str(self.user.pk))
        if self.retry_after_s:
            raise forms.ValidationError(TOO_MANY)
        if not self.user.check_password(self.cleaned_data["password"]):
            raise forms.ValidationError("Wrong password.")
        TRIES.forget(str(self.user.pk))
        return ""
