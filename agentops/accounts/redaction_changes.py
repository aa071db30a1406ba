"""Changes to the redaction rules of a project, each with an audit entry in the same transaction.

The caller checks the permission (Action.MANAGE).
"""

from __future__ import annotations

import re
from typing import Any

from django.db import transaction
from django.db.models import F

from agentops.accounts import redaction_cache, sealing
from agentops.accounts.audit import Actor, AuditAction, name_of, record
from agentops.accounts.errors import InvalidRule
from agentops.accounts.models import Project, RedactionRule
from agentops.base.database.statements import after_commit
from agentops.base.redaction.registered_secrets import ALPHABETS, MIN_SECRET
from agentops.base.redaction.secret_shapes import ALWAYS_MASKED, BUILT_IN_KINDS
from agentops.base.refusals import NotFound

#: Maximum number of rules of a project: each takes time for every text.
MAX_RULES = 100
MAX_SECRET = 4096
#: Length of the prefix of a token format.
MIN_PREFIX, MAX_PREFIX = 3, 64
#: Number of characters that follow the prefix.
MIN_LENGTH, MAX_LENGTH = 8, 512
_NAME = re.compile(r"[a-z][a-z0-9_]{1,31}")
_PREFIX = re.compile(r"[!-~]+")
#: Characters that JSON, HTML or URLs escape, so that a prefix with one of them could be written in several ways.
_NOT_IN_PREFIX = frozenset("\"'\\<>&%")
#: Minimum number of different characters of a secret.
_MIN_DISTINCT = 4


def add_secret(project: Project, name: str, value: str, *, actor: Actor) -> RedactionRule:
    """Add a secret, which is masked in all its encodings. Raises `InvalidRule`.

    The secret is stored encrypted, and is not part of the audit entry.
    """
    value = value.replace("\r\n", "\n").strip()
    if not MIN_SECRET <= len(value) <= MAX_SECRET:
        raise InvalidRule(f"a secret has {MIN_SECRET} to {MAX_SECRET} characters: shorter ones occur in other words")
    if len(set(value)) < _MIN_DISTINCT:
        raise InvalidRule(f"a secret has at least {_MIN_DISTINCT} different characters")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidRule("a secret cannot contain NUL or unpaired surrogates: no text is stored with them")
    sealed, key_id = sealing.seal(value, redaction_cache.owner_of(project.pk, name))
    rule = RedactionRule(kind=RedactionRule.Kind.SECRET, name=name, sealed=sealed, key_id=key_id)
    return _add(project, rule, actor, secret=value)


def add_format(
    project: Project, name: str, prefix: str, *, alphabet: str, least: int, most: int, actor: Actor
) -> RedactionRule:
    """Add a format of tokens: `prefix`, then `least` to `most` characters of `alphabet`. Raises `InvalidRule`."""
    if not MIN_PREFIX <= len(prefix) <= MAX_PREFIX:
        raise InvalidRule(f"a prefix has {MIN_PREFIX} to {MAX_PREFIX} characters")
    if not _PREFIX.fullmatch(prefix) or not _NOT_IN_PREFIX.isdisjoint(prefix):
        raise InvalidRule("a prefix consists of visible ASCII characters other than quotes, \\, <, >, & and %")
    if alphabet not in ALPHABETS:
        raise InvalidRule(f"{alphabet[:64]!r} is not an alphabet: choose from {', '.join(ALPHABETS)}")
    if not MIN_LENGTH <= least <= most <= MAX_LENGTH:
        raise InvalidRule(
            f"{MIN_LENGTH} to {MAX_LENGTH} characters follow a prefix, and the least is not above the most"
        )
    kind = RedactionRule.Kind.FORMAT
    rule = RedactionRule(kind=kind, name=name, prefix=prefix, alphabet=alphabet, least=least, most=most)
    return _add(project, rule, actor)


def add_exception(project: Project, kind: str, *, actor: Actor) -> RedactionRule:
    """Stop masking secrets of a built-in kind. Raises `InvalidRule`."""
    if kind not in BUILT_IN_KINDS:
        raise InvalidRule(f"{kind[:64]!r} is not a built-in kind")
    if kind in ALWAYS_MASKED:
        raise InvalidRule(f"{kind} is always masked")
    return _add(project, RedactionRule(kind=RedactionRule.Kind.EXCEPTION, name=kind), actor)


def remove_rule(project: Project, name: str, *, actor: Actor) -> None:
    """Remove a rule. Texts that were already stored stay masked. Raises `NotFound`."""
    with transaction.atomic():
        _lock(project)
        # PostgreSQL raises an error for NUL.
        rule = RedactionRule.objects.filter(project=project, name=name).first() if name.isprintable() else None
        if rule is None:
            raise NotFound("redaction rule not found", code="rule_not_found")
        record(actor, AuditAction.RULE_REMOVED, project=project, obj=rule, before=_audit_values(rule))
        rule.delete()


def set_model_input_masking(project: Project, is_masked: bool, *, actor: Actor) -> None:
    """Set whether texts are masked before they are stored and sent to a model. Displayed texts are always masked."""
    with transaction.atomic():
        _lock(project)
        different = Project.objects.filter(pk=project.pk).exclude(masks_model_input=is_masked)
        if not different.update(masks_model_input=is_masked):
            return
        before, after = {"masks_model_input": not is_masked}, {"masks_model_input": is_masked}
        record(actor, AuditAction.PROJECT_CHANGED, project=project, obj=project, before=before, after=after)


def rules_of(project: Project) -> list[RedactionRule]:
    """Return the rules of a project by kind and name."""
    return list(RedactionRule.objects.filter(project=project).order_by("-kind", "name"))


def _add(project: Project, rule: RedactionRule, actor: Actor, *, secret: str = "") -> RedactionRule:
    """Store a rule whose name is valid and new. `secret`: its secret, if it has one. Raises `InvalidRule`."""
    is_exception = rule.kind == RedactionRule.Kind.EXCEPTION
    if not is_exception and (not _NAME.fullmatch(rule.name) or rule.name in BUILT_IN_KINDS):
        text = "a name has 2 to 32 lower-case letters, digits and underscores, and starts with a letter"
        raise InvalidRule(f"{rule.name!r} is a built-in kind" if rule.name in BUILT_IN_KINDS else text)
    rule.project, rule.created_by = project, name_of(actor)
    with transaction.atomic():
        _lock(project)
        existing = rules_of(project)
        if any(each.name == rule.name for each in existing):
            raise InvalidRule(f"a rule {rule.name!r} already exists: remove it first")
        if len(existing) >= MAX_RULES:
            raise InvalidRule(f"a project can have at most {MAX_RULES} rules")
        if secret and (other_name := redaction_cache.rule_set_of(existing).secrets.get(secret)):
            raise InvalidRule(f"rule {other_name!r} already masks this secret")
        rule.save(force_insert=True)
        record(actor, AuditAction.RULE_ADDED, project=project, obj=rule, after=_audit_values(rule))
    return rule


def _lock(project: Project) -> None:
    """Lock the rules of a project for a change, after which all processes load them again."""
    Project.objects.filter(pk=project.pk).update(redaction_version=F("redaction_version") + 1)
    after_commit(redaction_cache.CACHE.expire)


def _audit_values(rule: RedactionRule) -> dict[str, Any]:
    """Return the values of a rule for the audit log, without any part of a secret."""
    fields = ("prefix", "alphabet", "least", "most") if rule.kind == RedactionRule.Kind.FORMAT else ()
    return {"kind": str(rule.kind), "name": rule.name, **{field: getattr(rule, field) for field in fields}}
