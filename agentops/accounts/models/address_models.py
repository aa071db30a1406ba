"""E-mail addresses of users, and whether they are verified."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class EmailAddress(models.Model):
    """The verification state of a user's e-mail address (agentops.accounts.login.addresses).

    The address itself is `User.email`. A row with another address is ignored, so a changed address is not verified,
    even if it was changed by a program or in the administration.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="email_address"
    )
    #: In lower case.
    email = models.EmailField()
    #: When a link that was sent to the address was opened. Null: never.
    verified_at = models.DateTimeField(null=True)
    #: The part of the newest link that makes it valid once. Empty: no link is valid.
    nonce = models.CharField(max_length=32, blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["email"], condition=models.Q(verified_at__isnull=False), name="email_address_verified_once"
            ),
        ]

    def __str__(self) -> str:
        return self.email
