"""Routers: which replica serves a request.

A router knows what a front end knows: the prompts, the replica that it sent each one to, and when
requests end.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from openinfer_kv_cache import BlockKeys
from openinfer_sim.errors import SimError

_TOKENS_PER_KEY = 1024
_BYTES_PER_ID = 4
_SHARE_OF_A_CONVERSATION = 0.5


@dataclass(frozen=True, slots=True)
class Route:
    """Decision of a router for one request.

    Attributes:
        replica: Index of the replica.
        num_tokens: Number of prompt tokens that the router expects the replica to compute.
    """

    replica: int
    num_tokens: int


class Router(Protocol):
    """Chooses the replica of each request.

    The simulation reports every first token and every end to the router.
    """

    def route(self, prompt_token_ids: bytes, /) -> Route:
        """Chooses a replica for a prompt, a u32 column."""

    def on_first_token(self, route: Route, /) -> None:
        """Records that the prompt has been computed."""

    def on_end(self, route: Route, /) -> None:
        """Records the end of a request, with or without a first token."""


class _Loads:
    """Outstanding work of each replica."""

    def __init__(self, num_replicas: int) -> None:
        self._num_requests = np.zeros(num_replicas)
        self._num_prefill_tokens = np.zeros(num_replicas)
        self._num_computed_tokens = np.zeros(num_replicas)

    def add(self, route: Route) -> None:
        self._num_requests[route.replica] += 1
        self._num_prefill_tokens[route.replica] += route.num_tokens
        self._num_computed_tokens[route.replica] += route.num_tokens

    def remove_prefill(self, route: Route) -> None:
        self._num_prefill_tokens[route.replica] -= route.num_tokens

    def remove(self, route: Route) -> None:
        self._num_requests[route.replica] -= 1

    def least(self) -> int:
        """Returns the replica with the fewest requests.

        Ties go to the fewest tokens still to prefill, then to the fewest computed so far.
        """
        order = (self._num_computed_tokens, self._num_prefill_tokens, self._num_requests)
        return int(np.lexsort(order)[0])

    def least_computed(self) -> int:
        """Returns the replica with the fewest computed tokens: probably the emptiest cache."""
        return int(np.argmin(self._num_computed_tokens))

    def num_prefill_tokens(self, replica: int) -> float:
        return float(self._num_prefill_tokens[replica])


class RandomRouter:
    """Chooses a random replica."""

    def __init__(self, num_replicas: int, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_replicas = num_replicas

    def route(self, prompt_token_ids: bytes, /) -> Route:
        """Draws a replica."""
        replica = int(self._rng.integers(self._num_replicas))
        return Route(replica, len(prompt_token_ids) // _BYTES_PER_ID)

    def on_first_token(self, route: Route, /) -> None:
        """Does nothing."""

    def on_end(self, route: Route, /) -> None:
        """Does nothing."""


class LeastLoadedRouter:
    """Chooses the replica with the fewest outstanding requests."""

    def __init__(self, num_replicas: int, *, seed: int = 0) -> None:
        self._loads = _Loads(num_replicas)

    def route(self, prompt_token_ids: bytes, /) -> Route:
        """Chooses the least loaded replica."""
        route = Route(self._loads.least(), len(prompt_token_ids) // _BYTES_PER_ID)
        self._loads.add(route)
        return route

    def on_first_token(self, route: Route, /) -> None:
        """Updates the replica's load."""
        self._loads.remove_prefill(route)

    def on_end(self, route: Route, /) -> None:
        """Updates the replica's load."""
        self._loads.remove(route)


class PrefixAwareRouter:
    """Sends a conversation to a replica that has it cached, and a new one to the emptiest replica.

    If the router has seen at least half of a prompt, the candidates are the replicas that were sent
    this prefix, and the least loaded replica. The candidate with the fewest tokens to compute is
    chosen. These are the tokens of this request and of requests that wait for their first token. A
    shorter match, such as a common system prompt, is ignored. It would collect conversations on the
    few replicas that have it, until they evict each other.

    Prefixes are remembered in pieces of 1,024 tokens. The router is not informed of evictions;
    beyond `max_keys` it forgets the oldest pieces.

    Args:
        num_replicas: Number of replicas.
        seed: Not used.
        max_keys: Upper bound of remembered pieces.
    """

    def __init__(self, num_replicas: int, *, seed: int = 0, max_keys: int = 1 << 20) -> None:
        self._loads = _Loads(num_replicas)
        self._max_keys = max_keys
        self._holders: OrderedDict[bytes, dict[int, None]] = OrderedDict()

    def route(self, prompt_token_ids: bytes, /) -> Route:
        """Chooses the replica with the fewest tokens to compute."""
        num_tokens = len(prompt_token_ids) // _BYTES_PER_ID
        keys = BlockKeys(_TOKENS_PER_KEY)
        keys.extend(prompt_token_ids)
        pieces = keys.slice(0, keys.num_blocks)
        depth = len(pieces)
        while depth and pieces[depth - 1] not in self._holders:
            depth -= 1
        num_known = depth * _TOKENS_PER_KEY
        holders = self._holders[pieces[depth - 1]] if depth else {}
        if num_known < _SHARE_OF_A_CONVERSATION * num_tokens:
            replica = self._loads.least_computed()
            best = Route(replica, num_tokens - num_known * (replica in holders))
        else:
            best = self._best(holders, num_tokens, num_tokens - num_known)
        self._remember(pieces, best.replica)
        self._loads.add(best)
        return best

    def _best(self, holders: Iterable[int], num_tokens: int, num_left: int) -> Route:
        routes = [Route(replica, num_left) for replica in holders]
        return min([*routes, Route(self._loads.least(), num_tokens)], key=self._cost)

    def on_first_token(self, route: Route, /) -> None:
        """Updates the replica's load."""
        self._loads.remove_prefill(route)

    def on_end(self, route: Route, /) -> None:
        """Updates the replica's load."""
        self._loads.remove(route)

    def _cost(self, route: Route) -> float:
        return self._loads.num_prefill_tokens(route.replica) + route.num_tokens

    def _remember(self, pieces: list[bytes], replica: int) -> None:
        holders = self._holders
        for piece in pieces:
            holders.setdefault(piece, {})[replica] = None
            holders.move_to_end(piece)
        while len(holders) > self._max_keys:
            holders.popitem(last=False)


ROUTERS: Mapping[str, Callable[..., Router]] = {
    "prefix-aware": PrefixAwareRouter,
    "least-loaded": LeastLoadedRouter,
    "random": RandomRouter,
}
"""Routers by name. Each is made from a number of replicas and a seed."""


def make_router(name: str, num_replicas: int, *, seed: int = 0) -> Router:
    """Makes a router by name.

    Raises:
        SimError: The name is unknown. The message lists the known ones.
    """
    if name not in ROUTERS:
        raise SimError(f"unknown router {name!r}; known are: {', '.join(ROUTERS)}")
    return ROUTERS[name](num_replicas, seed=seed)
