"""The second factor of a user: encryption of its secrets, limits on attempts, audit entries, and removing it.

The pages and the codes are allauth's.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.base.forms import AuthenticateForm
from allauth.mfa.models import Authenticator
from allauth.mfa.signals import (
    authentication_failed,
    authenticator_added,
    authenticator_removed,
    authenticator_reset,
)
from django import forms
from django.contrib.auth.models import User
from django.db import transaction
from django.dispatch import receiver
from django.http import HttpRequest

from agentops.accounts import sealing
from agentops.accounts.audit import Actor, AuditAction, record
from agentops.accounts.login.throttle import Throttle, TooManyAttempts
from agentops.accounts.requests import address_of, principal_of
from agentops.base.refusals import Refusal

#: Codes for one user, from all addresses: they can be tried only after the password.
CODES = Throttle("second-factor", limit=5, seconds=15 * 60)
#: The owner of the encrypted secrets: they cannot be used as secrets of redaction rules.
OWNER = "second factor"


class SecondFactorUnreadable(Refusal):
    """The secret of a second factor cannot be decrypted: its key is not in the settings."""

    code = "second_factor_unreadable"
    status = 503
    text = (
        "your second factor cannot be checked: its encryption key is not in the settings. Ask an operator to restore"
        " the key, or to remove your second factor (agentops second_factor remove NAME)"
    )


class EncryptedFactors(DefaultMFAAdapter):
    """Stores secrets encrypted, with the keys that encrypt the secrets of redaction rules."""

    def encrypt(self, text: str) -> str:
        """Return the ID of the key and the encrypted secret."""
        sealed, key_id = sealing.seal(text, OWNER)
        return f"{key_id}:{base64.b64encode(sealed).decode()}"

    def decrypt(self, encrypted_text: str) -> str:
        """Return the secret. Raise SecondFactorUnreadable."""
        key_id, _, sealed = encrypted_text.partition(":")
        try:
            return sealing.unseal(base64.b64decode(sealed), key_id, OWNER)
        except (sealing.Unreadable, binascii.Error):
            raise SecondFactorUnreadable from None


class CodeForm(AuthenticateForm):
    """A code of the authenticator app, or a recovery code."""

    code = forms.CharField(
        label="Code",
        max_length=32,
        widget=forms.TextInput(attrs={"autocomplete": "one-time-code", "inputmode": "numeric", "autofocus": True}),
        help_text="The current code of your authenticator app, or one of your recovery codes.",
    )

    def clean_code(self) -> str:
        """Check the code. Raise TooManyAttempts without checking it if too many were wrong."""
        if wait_s := CODES.wait_s(str(self.user.pk)):
            raise TooManyAttempts(wait_s)
        code: str = super().clean_code()
        CODES.forget(str(self.user.pk))
        return code


def remove_factors(user: User, *, actor: Actor) -> bool:
    """Delete the second factor of a user with its recovery codes. Return whether there was one."""
    with transaction.atomic():
        has_factor = bool(Authenticator.objects.filter(user=user).delete()[0])
        if has_factor:
            after = {"name": user.get_username(), "change": "removed"}
            record(actor, AuditAction.SECOND_FACTOR_CHANGED, project=None, obj=user, after=after)
    return has_factor


CHANGES = {authenticator_added: "added", authenticator_removed: "removed", authenticator_reset: "replaced"}


@receiver(list(CHANGES), dispatch_uid="agentops.second_factor")
def _note_change(signal: Any, request: HttpRequest, user: User, authenticator: Authenticator, **_: Any) -> None:
    after = {"name": user.get_username(), "type": authenticator.type, "change": CHANGES[signal]}
    record(principal_of(request), AuditAction.SECOND_FACTOR_CHANGED, project=None, obj=user, after=after)


@receiver(authentication_failed, dispatch_uid="agentops.second_factor")
def _note_failure(request: HttpRequest, user: User, **_: Any) -> None:
    name = f"user:{user.get_username()}"
    after = {"method": "second_factor"}
    record(name, AuditAction.LOGIN_FAILED, project=None, obj=user, after=after, ip=address_of(request))
