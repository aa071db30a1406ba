"""The shape of a flow's definition: its fields and their types. The published JSON Schema is generated from it."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from agentops.accounts.errors import InvalidSlug
from agentops.accounts.names import clean_slug
from runs.flows.kernel.expressions import MAX_LENGTH

MAX_NODES, MAX_EDGES = 500, 2_000
#: The highest limit that a loop may have.
MAX_ITERATIONS = 1_000
#: The maximum size of a definition as JSON, in bytes. Every run of the flow stores a copy.
MAX_BYTES = 512 * 1024


def _slug(text: str) -> str:
    try:
        return clean_slug(text)
    except InvalidSlug as error:
        raise ValueError(str(error)) from None


NodeId = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
Expression = Annotated[str, Field(min_length=1, max_length=MAX_LENGTH, description="A JMESPath expression.")]
Text = Annotated[str, Field(min_length=1, description="A text with bindings: `{{ path }}`.")]
Path = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", max_length=200)]


class Shape(BaseModel):
    """The base of all parts. Unknown keys are refused, because they are usually typos."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class Policy(Shape):
    """What happens when the node fails."""

    continue_on_error: bool = Field(
        False, alias="continueOnError", description="The flow continues. Otherwise it fails."
    )


class StatePatch(Shape):
    """Values that a node that is done writes to the state, by dotted path. `output` is the node's output."""

    set: dict[Path, JsonValue] = Field({}, description="Replace what is there.")
    merge: dict[Path, JsonValue] = Field({}, description="Add the members of an object; replace anything else.")


class _NodeShape(Shape):
    id: NodeId
    title: str = Field("", max_length=200, description="A name for people. Default: the ID.")
    when: Expression | None = Field(
        None, description="If it does not hold, the node is skipped, and the edges out of it are decided."
    )
    policy: Policy = Policy()
    state: StatePatch = StatePatch()


class AgentNode(_NodeShape):
    """A run of an agent. Its output is the structured output, if the agent has an output schema, or the answer."""

    type: Literal["agent"]
    agent: Annotated[str, Field(min_length=1, max_length=63)]
    prompt: Text
    max_steps: int | None = Field(None, alias="maxSteps", ge=1, le=1_000_000)


class ToolNode(_NodeShape):
    """A call of a tool. Its output is the tool's result, as a value if it is a JSON object or list."""

    type: Literal["tool"]
    tool: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: dict[str, JsonValue] = Field({}, description="Values with bindings.")
    settings: dict[str, Any] = Field({}, description="Settings of the tool, such as `root`, as in agents.")


class HumanNode(_NodeShape):
    """A question to a person. Its output is the answer."""

    type: Literal["human"]
    question: Text
    choices: list[Annotated[str, Field(min_length=1, max_length=500)]] = Field([], max_length=20)


class ConstantNode(_NodeShape):
    """A value, with bindings."""

    type: Literal["constant"]
    value: JsonValue


Node = Annotated[AgentNode | ToolNode | HumanNode | ConstantNode, Field(discriminator="type")]


class ForEach(Shape):
    """Run the target once for each item of a list."""

    in_: Expression = Field(alias="in", description="A JMESPath expression of a list.")
    as_: NodeId = Field("item", alias="as", description="The name of an item in the target's bindings.")


class EdgeShape(Shape):
    """An edge. It fires when its source is done and `when` holds, and is skipped otherwise."""

    from_: NodeId = Field(alias="from")
    to: NodeId
    when: Expression | None = None
    gate: Literal["any", "all"] | None = Field(
        None, description="Whether the target needs all edges into it (default), or any one. The same for all of them."
    )
    for_each: ForEach | None = Field(None, alias="forEach")
    max_iterations: int | None = Field(
        None,
        alias="maxIterations",
        ge=1,
        le=MAX_ITERATIONS,
        description="Makes this a loop edge, which leads back at most so often.",
    )


class FlowDefinition(Shape):
    """A flow: a graph of agents, tools, questions to people, and constants."""

    version: Literal[1] = Field(1, description="The version of this format.")
    flow_id: Annotated[str, AfterValidator(_slug)] = Field(
        description="The name of the flow in the project: lower-case letters, digits and hyphens."
    )
    title: str = Field("", max_length=200)
    description: str = Field("", max_length=10_000)
    inputs: dict[str, Any] = Field({}, description="A JSON Schema of the inputs of a run. Empty: any object.")
    state: dict[str, JsonValue] = Field({}, description="The state at the start of a run.")
    nodes: list[Node] = Field(min_length=1, max_length=MAX_NODES)
    edges: list[EdgeShape] = Field([], max_length=MAX_EDGES)


@cache
def flow_schema() -> dict[str, Any]:
    """Return the JSON Schema of a definition. It does not cover relations between parts: see `examine`."""
    schema = FlowDefinition.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Flow"}
