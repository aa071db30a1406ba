"""Who calls the API: the holder of a key, or whoever is signed in."""

from __future__ import annotations

from typing import NamedTuple

from django.http import HttpRequest

from agentops.projects import keys
from agentops.projects.access import Principal, principal_for_key, principal_for_user
from agentops.projects.errors import AuthInvalid
from agentops.projects.models import ApiKey

BEARER = "bearer "


class Caller(NamedTuple):
    principal: Principal
    #: As it was read for this request, with its project.
    key: ApiKey | None = None


def caller_of(request: HttpRequest) -> Caller:
    """By the key where one is sent, and by nothing else then; raises AuthInvalid or AuthRevoked for a bad one."""
    ip = request.META.get("REMOTE_ADDR") or None
    header = request.headers.get("Authorization")
    if header is None:
        return Caller(principal_for_user(request.user, ip=ip))
    if not header.lower().startswith(BEARER):
        raise AuthInvalid
    key = keys.authenticate(header[len(BEARER) :].strip())
    return Caller(principal_for_key(key, ip=ip), key)
