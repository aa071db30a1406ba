"""Forms that perform an action when they are validated; refusals of the action are form errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.db import transaction
from django.http import HttpRequest

from agentops.accounts.access import Principal
from agentops.accounts.login.throttle import Throttle
from agentops.admin_base.cells import line
from agentops.admin_base.scope import AdminScope, scope_of
from agentops.base.refusals import Refusal

if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[Any]
else:
    _ModelForm = forms.ModelForm

#: Longer passwords are rejected before they are hashed.
MAX_PASSWORD = 1024
TRIES = Throttle("reauth", limit=5, seconds=15 * 60)
WRONG = "Wrong password or too many attempts. After 5 failed attempts, wait 15 minutes."


class ActionForm(_ModelForm):
    """A form whose `act` calls the action, in place of saving the model instance."""

    #: Set by the model admin for each request.
    request: ClassVar[HttpRequest]
    #: Code of a refusal → field that displays it. Other refusals are displayed above the form.
    fields_of: ClassVar[dict[str, str]] = {}
    #: Seconds until another attempt is allowed, if this one was refused without checking the password.
    retry_after_s = 0

    @property
    def scope(self) -> AdminScope:
        """Return the scope of the request."""
        return scope_of(self.request)

    @property
    def principal(self) -> Principal:
        """Return the user who submitted the form."""
        return self.scope.principal

    def act(self, data: dict[str, Any]) -> Any:
        """Perform the action with the cleaned data and return the row."""
        raise NotImplementedError

    def _post_clean(self) -> None:
        """Perform the action. Replaces Django's assignment to the instance, which would bypass the checks."""
        if self.errors:
            return
        try:
            with transaction.atomic():
                self.instance = self.act(self.cleaned_data)
        except Refusal as refusal:
            self.add_error(self.field_of(refusal), line(refusal, 400))

    def field_of(self, refusal: Refusal) -> str | None:
        """Return the field that displays a refusal; None for above the form."""
        field = self.fields_of.get(refusal.code, "")
        return field if field in self.fields else None

    def validate_unique(self) -> None:
        """Do nothing: the action checks uniqueness."""

    def save(self, commit: bool = True) -> Any:
        """Return the row that the action saved."""
        return self.instance

    def save_m2m(self) -> None:
        """Do nothing: the action has saved everything."""


class ReauthenticatedForm(ActionForm):
    """A form that requires the user's password, so that a stolen session is not sufficient."""

    password = forms.CharField(
        label="Your password",
        max_length=MAX_PASSWORD,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "maxlength": None}),
        help_text="Enter your password to confirm.",
    )

    def clean_password(self) -> str:
        """Check the password. Raise ValidationError if it is wrong or after too many attempts."""
        user = self.request.user
        self.retry_after_s = TRIES.wait_s(str(user.pk))
        if self.retry_after_s or not user.check_password(self.cleaned_data["password"]):
            raise forms.ValidationError(WRONG)
        TRIES.forget(str(user.pk))
        return ""
