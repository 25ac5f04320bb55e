"""Which replica a request goes to: small policies for scale studies.

A router knows what a front end knows: the prompt, and what it sent where and what came back.
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
    """Where a request went.

    Attributes:
        replica: index.
        num_tokens: what the router expects to be computed for it before its first token.
    """

    replica: int
    num_tokens: int


class Router(Protocol):
    """Chooses replicas. Told of every first token and every end."""

    def route(self, prompt_token_ids: bytes, /) -> Route:
        """Chooses for a prompt, a u32 column."""

    def on_first_token(self, route: Route, /) -> None:
        """The prompt has been computed."""

    def on_end(self, route: Route, /) -> None:
        """The request is over, with or without a first token."""


class _Loads:
    """What is outstanding on each replica."""

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
        """Fewest requests, then fewest tokens to compute, then fewest computed ever."""
        order = (self._num_computed_tokens, self._num_prefill_tokens, self._num_requests)
        return int(np.lexsort(order)[0])

    def least_computed(self) -> int:
        """Fewest tokens computed ever: the emptiest cache, as far as a router can tell."""
        return int(np.argmin(self._num_computed_tokens))

    def num_prefill_tokens(self, replica: int) -> float:
        return float(self._num_prefill_tokens[replica])


class RandomRouter:
    """Any replica, by seed."""

    def __init__(self, num_replicas: int, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_replicas = num_replicas

    def route(self, prompt_token_ids: bytes, /) -> Route:
        """Draws."""
        replica = int(self._rng.integers(self._num_replicas))
        return Route(replica, len(prompt_token_ids) // _BYTES_PER_ID)

    def on_first_token(self, route: Route, /) -> None:
        """Nothing to know."""

    def on_end(self, route: Route, /) -> None:
        """Nothing to know."""


class LeastLoadedRouter:
    """The replica with the fewest requests outstanding."""

    def __init__(self, num_replicas: int, *, seed: int = 0) -> None:
        self._loads = _Loads(num_replicas)

    def route(self, prompt_token_ids: bytes, /) -> Route:
        """Takes the least loaded."""
        route = Route(self._loads.least(), len(prompt_token_ids) // _BYTES_PER_ID)
        self._loads.add(route)
        return route

    def on_first_token(self, route: Route, /) -> None:
        """Counts."""
        self._loads.remove_prefill(route)

    def on_end(self, route: Route, /) -> None:
        """Counts."""
        self._loads.remove(route)


class PrefixAwareRouter:
    """A conversation goes on where it is cached, a new one begins where the least was computed.

    Where most of a prompt is known, the replicas that were sent it are weighed against the least
    loaded one by what is left to compute: before the request, and of the request itself. A smaller
    match, such as a system prompt that everybody shares, draws nobody: it would pile up
    conversations on the few that have it, until they evict each other's.

    Remembers prefixes in pieces of 1,024 tokens, as a front end can that is told nothing of
    evictions; forgets the oldest pieces beyond `max_keys`.
    """

    def __init__(self, num_replicas: int, *, seed: int = 0, max_keys: int = 1 << 20) -> None:
        self._loads = _Loads(num_replicas)
        self._max_keys = max_keys
        self._holders: OrderedDict[bytes, dict[int, None]] = OrderedDict()

    def route(self, prompt_token_ids: bytes, /) -> Route:
        """Goes on or begins."""
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
        """Counts."""
        self._loads.remove_prefill(route)

    def on_end(self, route: Route, /) -> None:
        """Counts."""
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
"""Routers by name; each is made from a number of replicas and a seed."""


def make_router(name: str, num_replicas: int, *, seed: int = 0) -> Router:
    """A router by name.

    Raises:
        SimError: naming the known ones.
    """
    if name not in ROUTERS:
        raise SimError(f"no router {name!r}; known are: {', '.join(ROUTERS)}")
    return ROUTERS[name](num_replicas, seed=seed)
