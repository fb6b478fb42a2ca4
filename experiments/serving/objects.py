"""What is read of the objects of Kubernetes, as Go writes them: `v1.Pod`, `v1.Node`."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import cache, cached_property
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AliasChoices,
    AliasGenerator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)
from pydantic.alias_generators import to_camel, to_pascal

from agents.cluster.live_state import LARGEST_GANG
from agents.decision import Form, Name, StateError

PRODUCT = "nvidia.com/gpu.product"
GROUP = (  # annotations or labels that name the gang of a pod
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
)
SIZE = (  # that say how many members it needs
    "pod-group.scheduling.sigs.k8s.io/min-available",
    "scheduling.volcano.sh/group-min-member",
)
UNKNOWN = "unknown"  # the type of the GPUs of a node without the label
OVER = ("Succeeded", "Failed")
MOST_KEPT = 2**26  # bytes of nodes
OPENS = b'{"metadata":{'  # a node, as Go writes it
FIRST = b'"items":[' + OPENS
Label = Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f]*$")]
Labels = dict[str, str]


def _count(value: Any) -> Any:
    """A quantity of Kubernetes' as a number, at most `LARGEST_GANG`."""
    found = re.fullmatch(r"(\d+)([kMG]?)", str(value))
    if found is None:
        return value
    return min(int(found[1]) * 1000 ** " kMG".index(found[2] or " "), LARGEST_GANG)


Count = Annotated[int, BeforeValidator(_count), Field(ge=0)]


def _keys(field: str) -> AliasChoices:
    """Of a field: as Go writes it with a tag and without, in lower case, in upper case."""
    lower = field.replace("_", "")
    return AliasChoices(to_camel(field), to_pascal(field), lower, lower.upper())


class GoObject(BaseModel):
    """An object of Go's; what is not a field here is not read."""

    model_config = ConfigDict(alias_generator=AliasGenerator(validation_alias=_keys))


Read = TypeVar("Read", bound=GoObject)


class Resources(GoObject):
    """GPUs of a `v1.ResourceList`."""

    gpus: Count = Field(default=0, validation_alias="nvidia.com/gpu")


class Metadata(GoObject):
    """`metav1.ObjectMeta`."""

    name: Name
    namespace: Name = "default"
    uid: Label = ""
    labels: Labels | None = None
    annotations: Labels | None = None
    creation_timestamp: AwareDatetime | None = None


class Requirements(GoObject):
    """`v1.ResourceRequirements`."""

    requests: Resources = Resources()
    limits: Resources = Resources()


class Container(GoObject):
    """`v1.Container`."""

    resources: Requirements = Requirements()

    @property
    def gpus(self) -> int:
        return max(self.resources.requests.gpus, self.resources.limits.gpus)


class PodSpec(GoObject):
    """`v1.PodSpec`."""

    node_name: Label = ""
    node_selector: dict[str, Label] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None

    @property
    def gpus(self) -> int:
        """That it asks for: as many as its containers together, or one that comes before."""
        first = max((one.gpus for one in self.init_containers or ()), default=0)
        return max(first, sum(one.gpus for one in self.containers or ()))


class Terminated(GoObject):
    """`v1.ContainerStateTerminated`."""

    finished_at: AwareDatetime | None = None


class ContainerState(GoObject):
    """`v1.ContainerState`."""

    terminated: Terminated = Terminated()


class ContainerStatus(GoObject):
    """`v1.ContainerStatus`."""

    state: ContainerState = ContainerState()


class PodStatus(GoObject):
    """`v1.PodStatus`."""

    phase: str = ""
    start_time: AwareDatetime | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(GoObject):
    """`v1.Pod`."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def id(self) -> str:
        return self.metadata.uid or f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def gang(self) -> tuple[tuple[str, ...], int]:
        """A key of the gang, and the members that it needs; 0: that is not said."""
        meta = self.metadata
        said = {**(meta.labels or {}), **(meta.annotations or {})}
        group = next((said[key] for key in GROUP if said.get(key)), None)
        if group is None:
            return (self.id,), 1
        size = next((said[key] for key in SIZE if key in said), "")
        return (meta.namespace, group), int(size) if re.fullmatch("[0-9]{1,6}", size) else 0


def kinds(pods: Iterable[Pod | None]) -> dict[str, list[str]]:
    """The GPU types of a state's job, where all its pods select one."""
    selectors = (pod and pod.spec.node_selector for pod in pods)
    found = {(selector or {}).get(PRODUCT, "") for selector in selectors}
    return {} if "" in found or not found else {"gpu_types": sorted(found)}


def seconds(when: datetime | None, now: float) -> float:
    """Of the epoch, none of them to come; now where it is not said."""
    return now if when is None else min(max(when.timestamp(), 0.0), now)


class Condition(GoObject):
    """`v1.NodeCondition`."""

    type: str
    status: str


class NodeSpec(GoObject):
    """`v1.NodeSpec`."""

    unschedulable: bool = False


class NodeStatus(GoObject):
    """`v1.NodeStatus`."""

    allocatable: Resources = Resources()
    conditions: list[Condition] | None = None


class Node(GoObject):
    """`v1.Node`."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @cached_property
    def gpu_type(self) -> str:
        return (self.metadata.labels or {}).get(PRODUCT) or UNKNOWN

    @cached_property
    def up(self) -> bool:
        said = self.status.conditions or ()
        ready = all(one.status == "True" for one in said if one.type == "Ready")
        return ready and not self.spec.unschedulable


class NodeList(GoObject):
    """`v1.NodeList`."""

    items: list[Node] | None = None


class ExtenderArgs(GoObject):
    """A pod, and nodes or their names."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: list[Name] | None = None


class WholeNodes(GoObject):
    """A `v1.NodeList`, of which all is kept."""

    items: list[dict[str, Any]]


class WholeArgs(GoObject):
    """The nodes of `ExtenderArgs`."""

    nodes: WholeNodes


class PodList(GoObject):
    """`v1.PodList`."""

    items: list[Pod] | None = None


def read(kind: type[Read], body: bytes) -> Read:
    """An object from its JSON.

    Raises:
        StateError: it is none.
    """
    return cast(Read, _form(kind).read(body))


@cache
def _form(kind: type[GoObject]) -> Form:
    return Form(kind, "")


class ArgumentReader:
    """Reads `ExtenderArgs`; nodes whose text was read before are not read again.

    kube-scheduler sends all of each node with each pod, and little of that changes. Its text is cut
    where Go begins a node. Each piece that is an object by itself, in a text that is valid with
    another in their place, is a node; where one is none, all is read at once.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Node] = {}
        self._bytes = 0
        self._other = secrets.token_hex()  # the name of a node that nobody has
        self._instead = b'{"metadata":{"name":"%b"}}' % self._other.encode()

    def read(self, body: bytes) -> tuple[ExtenderArgs, list[bytes]]:
        """The arguments, and the texts of their nodes where they were cut.

        Raises:
            StateError: they are none.
        """
        found = body.find(FIRST, max(body.find(b'"Nodes":{'), 0))
        start, end = found + len(FIRST) - len(OPENS), body.rfind(b"}]}")
        if 0 <= found < end:
            with suppress(StateError):
                args = read(ExtenderArgs, body[:start] + self._instead + body[end + 1 :])
                listed = (args.nodes and args.nodes.items) or ()
                if args.nodes and [node.metadata.name for node in listed] == [self._other]:
                    pieces = body[start + len(OPENS) : end].split(b"}," + OPENS)
                    texts = [OPENS + piece + b"}" for piece in pieces]
                    args.nodes.items = [*map(self._node, texts)]
                    return args, texts
        return read(ExtenderArgs, body), []

    def _node(self, text: bytes) -> Node:
        found = self._known.get(text)
        if found is None:
            found = read(Node, text)
            if self._bytes > MOST_KEPT:
                self._known, self._bytes = {}, 0
            self._known[text] = found
            self._bytes += len(text)
        return found
