"""Share links: a run's report for readers without an account. The caller checks the permission (Action.MANAGE)."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.core import signing
from django.db import transaction
from django.db.models import F

from agentops.accounts.audit import Actor, record
from agentops.base import database_clock
from agentops.base.refusals import NotFound
from runs.actions.annotations.annotation_audit import AnnotationAuditAction
from runs.errors import InvalidAnnotation, RunNotFound
from runs.models import AgentRun, ShareLink

SALT = "runs.share_links"
MAX_DAYS, DEFAULT_DAYS = 90, 7
#: Maximum active links of a run.
MAX_LINKS = 20


def token_of(link: ShareLink) -> str:
    """Return the token in the link's URL: its ID, signed."""
    return signing.Signer(salt=SALT).sign(link.pk.hex)


def link_of(token: str) -> ShareLink | None:
    """Return the active link of a token, with run and project. None if it is forged, expired or revoked, or if the run
    no longer exists.
    """
    try:
        link_id = UUID(hex=signing.Signer(salt=SALT).unsign(token))
    except (signing.BadSignature, ValueError):
        return None
    rows = ShareLink.objects.select_related("run__project", "run__log", "project")
    link = rows.filter(pk=link_id, run__removed_at=None, project__removed_at=None).first()
    return link if link is not None and link.is_active(database_clock.now()) else None


def links_of(run: AgentRun) -> list[ShareLink]:
    """Return the active links of a run, newest first."""
    rows = ShareLink.objects.filter(run=run, revoked_at=None, expires_at__gt=database_clock.now())
    return list(rows.order_by("-pk")[:MAX_LINKS])


def share(run: AgentRun, days: int, *, by: Actor) -> ShareLink:
    """Create a link that expires after `days` days. Raises `InvalidAnnotation` and `RunNotFound`."""
    if not 1 <= days <= MAX_DAYS:
        raise InvalidAnnotation(f"days must be 1 to {MAX_DAYS}, not {days}", pointer="/days")
    with transaction.atomic():
        # Retention locks the same row before it hides the run and deletes its links.
        if not AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=run.pk).exists():
            raise RunNotFound("no such run")
        if len(links_of(run)) >= MAX_LINKS:
            raise InvalidAnnotation(f"a run can have at most {MAX_LINKS} links: revoke one", pointer="/days")
        now = database_clock.now()
        link = ShareLink.objects.create(
            project=run.project, run=run, created_by=(by if isinstance(by, str) else by.actor)[:200], created_at=now,
            expires_at=now + timedelta(days=days),
        )  # fmt: skip
        after = {"link": str(link.pk), "expires_at": link.expires_at}
        record(by, AnnotationAuditAction.SHARED, project=run.project, obj=run, after=after)
    return link


def revoke(run: AgentRun, link_id: UUID, *, by: Actor) -> ShareLink:
    """Revoke a link, so that it opens nothing. Repeating this changes nothing. Raises `share_link_not_found`."""
    with transaction.atomic():
        link = ShareLink.objects.select_for_update().filter(run=run, pk=link_id).first()
        if link is None:
            raise NotFound("the run has no such link", code="share_link_not_found")
        if link.revoked_at is None:
            link.revoked_at = database_clock.now()
            link.save(update_fields=["revoked_at"])
            record(by, AnnotationAuditAction.SHARE_REVOKED, project=run.project, obj=run, after={"link": str(link.pk)})
    return link


def count_view(link: ShareLink) -> None:
    """Count a request for the report."""
    ShareLink.objects.filter(pk=link.pk).update(view_count=F("view_count") + 1, viewed_at=database_clock.now())
