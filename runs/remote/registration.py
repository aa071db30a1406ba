"""The agents whose durable functions a process offers to execute: a process elsewhere, or a worker of this site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentops.accounts import audit
from agentops.accounts.models import Project
from agentops.base.refusals import Conflict
from runs.actions import agent_definitions
from runs.models import Agent
from runs.providers.remote import CODE_VERSION, NAME, PACKAGE
from runs.remote.bodies import OfferedAgent

#: The model of an agent that names none.
ANY_MODEL = "any"
#: Provider of an offer → the refusal if the agent has another provider.
_CONFLICTS = {
    NAME: "the agent {!r} is executed by this site (provider {!r}): choose another name",
    PACKAGE: "the project has an agent {!r} with the provider {!r}: give one of them another name",
}


def register(project: Project, agents: Sequence[OfferedAgent], *, by: audit.Actor) -> list[dict[str, Any]]:
    """Create the offered agents, or change the fields that differ. Fields that an offer omits stay as they are.

    An offer with a lower code version than the stored one changes nothing, so that an old process does not undo a
    deployment. Raises `Conflict` with the code `agent_not_remote` for an agent of another provider, and `InvalidAgent`.
    """
    return [_register(project, offer, by, NAME) for offer in agents]


def register_packaged(project: Project, offer: OfferedAgent, *, by: audit.Actor) -> None:
    """Do the same for an agent whose code is in an installed package. Raises `Conflict` and `InvalidAgent`."""
    _register(project, offer, by, PACKAGE)


def _register(project: Project, offer: OfferedAgent, by: audit.Actor, provider: str) -> dict[str, Any]:
    agent = Agent.objects.filter(project=project, slug=offer.name).first()
    if agent is not None and agent.provider != provider:
        raise Conflict(_CONFLICTS[provider].format(offer.name, agent.provider), code="agent_not_remote")
    if agent is None or _code_version(agent) <= offer.version:
        agent, _ = agent_definitions.apply(project, _definition(agent, offer, provider), by=by)
    return {"name": agent.slug, "version": _code_version(agent), "agent_version": agent.version}


def _code_version(agent: Agent) -> int:
    return int(agent.settings.get(CODE_VERSION, 1))


def _definition(agent: Agent | None, offer: OfferedAgent, provider: str) -> dict[str, Any]:
    """Return the definition of an agent with the fields of the offer."""
    stored: dict[str, Any] = {} if agent is None else {**agent.frozen(), **agent.placement}
    stored.pop("version", None)
    given = {
        "instructions": offer.description,
        "model": offer.model,
        "queue": offer.queue,
        "max_steps": offer.max_steps,
    }
    settings = {**stored.get("settings", {}), **(offer.settings or {}), CODE_VERSION: offer.version}
    return {
        "model": ANY_MODEL,
        **stored,
        **{name: value for name, value in given.items() if value is not None},
        "agent_id": offer.name,
        "provider": provider,
        "settings": settings,
    }
