"""The durable functions of installed packages, and of the modules that the deployment names.

`agentops.durable` is imported with the first of them: a site without such packages may be installed without the client.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentops.accounts.errors import InvalidSlug
from agentops.accounts.names import clean_slug
from agentops.base.catalogue import Catalogue, CatalogueEntry, Extension, ExtensionFailed, members_of
from agentops.base.refusals import Invalid
from runs.remote.bodies import OfferedAgent, parsed

if TYPE_CHECKING:
    from agentops.durable.functions import DurableFunction, Functions


class PackagedAgents(Catalogue["DurableFunction"]):
    """The durable functions by their names and versions, such as `support version 2`.

    An extension is a durable function, an agent or a graph of a framework that has an adapter, or a module with durable
    functions.
    """

    kind = "agent"
    group = "agentops.agents"
    setting = "AGENTOPS_AGENT_MODULES"

    def candidates(self, extension: Extension, value: object) -> Iterable[object]:
        if not isinstance(value, ModuleType):
            return [value]
        from agentops.durable.functions import DurableFunction

        # Objects of frameworks are named one by one: a module has others too, such as tools.
        functions = [each for each in members_of(value) if isinstance(each, DurableFunction)]
        if not functions:
            raise ExtensionFailed(extension.source, "contains no function with the decorator @durable")
        # A module may import a function of another one; this does not add it again.
        return [each for each in functions if not self._is_known(each)]

    def make(self, extension: Extension, candidate: Any) -> tuple[str, DurableFunction]:
        try:
            from agentops.durable.functions import as_durable_function

            function = as_durable_function(candidate)
            clean_slug(function.name)
            parsed(OfferedAgent, function.offer())
        except (TypeError, ValueError, ImportError, InvalidSlug, Invalid) as error:
            raise ExtensionFailed(extension.source, str(error)) from error
        return _name(function.name, function.version), function

    def describe(self, entry: CatalogueEntry[DurableFunction]) -> str:
        """Return the description of the function, or else its docstring."""
        return str(entry.part.offer().get("description") or entry.part.__doc__ or "").strip()

    def find(self, agent: str, version: int) -> DurableFunction | None:
        """Return the function that executes the runs of an agent; None if no package has it in this version."""
        return self.get(_name(agent, version))

    def versions(self) -> dict[str, list[int]]:
        """Return the agents that this process can execute, each with the versions of its code."""
        functions = self._functions()
        return {} if functions is None else functions.versions

    def offers(self) -> list[OfferedAgent]:
        """Return the newest version of each agent, for its registration."""
        functions = self._functions()
        return [] if functions is None else [parsed(OfferedAgent, offer) for offer in functions.offers]

    def _functions(self) -> Functions | None:
        parts = [entry.part for entry in self.all().values()]
        if not parts:
            return None
        from agentops.durable.functions import Functions

        return Functions(parts)

    def _is_known(self, function: DurableFunction) -> bool:
        entry = self._added.get(_name(function.name, function.version))
        return entry is not None and entry.part is function


def _name(agent: str, version: int) -> str:
    return f"{agent} version {version}"


AGENTS = PackagedAgents({})
