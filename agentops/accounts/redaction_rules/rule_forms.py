"""The forms of the redaction page. The rules themselves are checked by rule_changes."""

from __future__ import annotations

from typing import Any

from django import forms

from agentops.accounts.audit import Actor
from agentops.accounts.models import Project, RedactionRule
from agentops.accounts.redaction_rules import rule_changes
from agentops.accounts.settings_pages.page_parts import SECRET, SHORT, HiddenText
from agentops.base.redaction.kinds import ALWAYS_MASKED, BUILT_IN_KINDS
from agentops.base.redaction.token_formats import ALPHABETS

#: Maximum length of a text to test.
MAX_TEXT = 65_536
#: Alphabet → label in the form.
ALPHABET_NAMES = {
    "digits": "digits",
    "hex": "hexadecimal digits",
    "alnum": "letters and digits",
    "word": "letters, digits, - and _",
    "base64": "base64: letters, digits, + / = - and _",
}
assert ALPHABET_NAMES.keys() == ALPHABETS.keys()


class RuleForm(forms.Form):
    """A form that adds a rule."""

    kind: RedactionRule.Kind

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, auto_id=f"{self.kind}-%s")

    def add_rule(self, project: Project, actor: Actor) -> None:
        """Add the rule of a valid form. Raise InvalidRule."""
        raise NotImplementedError


class NamedRuleForm(RuleForm):
    """A form with the name of a rule."""

    name = forms.CharField(
        max_length=32,
        widget=forms.TextInput(SHORT),
        help_text="Shown in place of the secret, as in `[REDACTED:billing_password:1a2b3c4d]`. Lower-case letters, "
        "digits and underscores.",
    )


class SecretForm(NamedRuleForm):
    """A named secret."""

    kind = RedactionRule.Kind.SECRET
    secret = forms.CharField(
        max_length=rule_changes.MAX_SECRET,
        widget=HiddenText(SECRET | SHORT | {"rows": 2}),
        help_text=f"6 to {rule_changes.MAX_SECRET} characters. It is stored encrypted, and never shown again.",
    )

    def add_rule(self, project: Project, actor: Actor) -> None:
        rule_changes.add_secret(project, self.cleaned_data["name"], self.cleaned_data["secret"], actor=actor)


class FormatForm(NamedRuleForm):
    """A format of tokens."""

    kind = RedactionRule.Kind.FORMAT
    token_prefix = forms.CharField(
        label="Prefix",
        max_length=rule_changes.MAX_PREFIX,
        widget=forms.TextInput(SHORT),
        help_text="The characters that all such tokens begin with, at least 3, such as `acme_live_`",
    )
    alphabet = forms.ChoiceField(label="Characters that follow", choices=list(ALPHABET_NAMES.items()), initial="alnum")
    least = forms.IntegerField(
        label="Fewest characters after the prefix",
        initial=16,
        min_value=rule_changes.MIN_LENGTH,
        max_value=rule_changes.MAX_LENGTH,
        widget=forms.TextInput({"inputmode": "numeric"}),
    )
    most = forms.IntegerField(
        label="Most characters after the prefix",
        initial=128,
        min_value=rule_changes.MIN_LENGTH,
        max_value=rule_changes.MAX_LENGTH,
        widget=forms.TextInput({"inputmode": "numeric"}),
        help_text="From 8 to 512. A longer sequence of these characters is not masked.",
    )

    def add_rule(self, project: Project, actor: Actor) -> None:
        values: dict[str, Any] = dict(self.cleaned_data)
        name, prefix = values.pop("name"), values.pop("token_prefix")
        rule_changes.add_format(project, name, prefix, **values, actor=actor)


class ExceptionForm(RuleForm):
    """A built-in kind that is not masked."""

    kind = RedactionRule.Kind.EXCEPTION
    masked_kind = forms.ChoiceField(
        label="Built-in kind",
        choices=[(each, each) for each in sorted(BUILT_IN_KINDS - ALWAYS_MASKED)],
        help_text="For values that are no secrets in this project. They are then stored, sent to models and shown "
        "unmasked.",
    )

    def add_rule(self, project: Project, actor: Actor) -> None:
        rule_changes.add_exception(project, self.cleaned_data["masked_kind"], actor=actor)


class TesterForm(forms.Form):
    """A text to test the rules with."""

    text = forms.CharField(
        max_length=MAX_TEXT,
        strip=False,
        widget=HiddenText(SECRET | SHORT | {"rows": 5}),
        error_messages={"required": "Enter a text."},
        help_text="The text is masked and shown once. It is neither stored nor logged.",
    )


FORMS: dict[str, type[RuleForm]] = {form.kind.value: form for form in (SecretForm, FormatForm, ExceptionForm)}
