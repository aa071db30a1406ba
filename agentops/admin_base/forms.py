"""Forms that act: they are valid exactly where the function that every door calls has done what they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.db import transaction
from django.http import HttpRequest

from agentops.admin_base.cells import line
from agentops.admin_base.scope import AdminScope, scope_of
from agentops.projects.access import Principal
from agentops.projects.login.throttle import Throttle
from agentops.projects.requests import address_of

if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[Any]
else:
    _ModelForm = forms.ModelForm

#: Longer ones are refused before anything is computed from them.
MAX_PASSWORD = 1024
TRIES = Throttle("reauth", limit=5, seconds=15 * 60)
WRONG = "This is not your password, or too many tries: after five failures wait 15 minutes."


class ActingForm(_ModelForm):
    """A subclass says in `act` which function it is the form of, and where the function's refusals belong."""

    #: Set by the model admin for each request.
    request: ClassVar[HttpRequest]
    #: The `code` of a refusal → the field that it speaks of; of any other it is said above the form.
    fields_of: ClassVar[dict[str, str]] = {}

    @property
    def scope(self) -> AdminScope:
        return scope_of(self.request)

    @property
    def principal(self) -> Principal:
        return self.scope.principal

    def act(self, given: dict[str, Any]) -> Any:
        """Do it, and give the row that came of it."""
        raise NotImplementedError

    def _post_clean(self) -> None:
        """In the place of Django's own filling of a row, which would go around every rule of ours."""
        if self.errors:
            return
        try:
            with transaction.atomic():
                self.instance = self.act(self.cleaned_data)
        except Exception as refusal:
            code, status = getattr(refusal, "code", None), getattr(refusal, "status", None)
            if not isinstance(code, str) or not isinstance(status, int) or not 400 <= status < 500:
                raise
            self.add_error(self.place_of(refusal, code), line(refusal, 400))

    def place_of(self, refusal: Exception, code: str) -> str | None:
        field = self.fields_of.get(code, "")
        return field if field in self.fields else None

    def validate_unique(self) -> None:
        """The function has looked, under its locks."""

    def save(self, commit: bool = True) -> Any:
        return self.instance

    def save_m2m(self) -> None:
        """There is nothing left to save."""


class ReauthenticatedForm(ActingForm):
    """For what a stolen session must not be enough for."""

    password = forms.CharField(
        label="Your password",
        max_length=MAX_PASSWORD,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "maxlength": None}),
        help_text="Asked again, because this gives power to whoever holds what comes of it.",
    )

    def clean_password(self) -> str:
        user, address = self.request.user, address_of(self.request)
        name = user.get_username()
        if TRIES.spent(name.casefold(), address) or not user.check_password(self.cleaned_data["password"]):
            raise forms.ValidationError(WRONG)
        TRIES.forget(name.casefold(), address)
        return ""
