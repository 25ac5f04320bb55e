"""What the cost model knows of devices, models and overheads: `figures.toml` as structs."""

import math
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from openinfer_kv_cache import CacheGroup, Plane, Resume
from openinfer_sim.errors import UnknownFigures

_Figures = TypeVar("_Figures")

_BYTES_PER_PARAM = 2
_POSITIONS_PER_PAGE = 16
"""A page of keys and values is a multiple of it."""


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a device reaches in kernels alone."""

    name: str = ""
    title: str
    memory_bytes: int
    read_bytes_per_s: float
    """Streaming read."""
    product_flops: float
    """bf16 matrix product, FLOP/s."""
    attention_flops: float
    """Causal prefill attention, FLOP/s."""
    link_bytes_per_s: float
    """Of one device to the others of its host, one way, as collectives reach it."""
    link_latency_s: float
    """Of an all-reduce of few bytes."""


_DIVIDED = (
    "num_layer_params", "layer_bytes", "num_head_params", "num_resident_params",
    "attention_flops_per_pair", "attention_flops_per_query", "state_bytes",
)  # fmt: skip
"""What tensor parallel ranks divide evenly."""


class ExpertFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The routed experts of a mixture model."""

    num_layers: int
    num_experts: int
    """Per layer."""
    num_per_token: int
    num_params: int
    """Of one expert."""
    bytes_per_param: float = _BYTES_PER_PARAM
    """As published, with the scales of quantized weights."""
    spread: float | None = None
    """Power with which the experts touched grow with the tokens: 0 if every token takes the same
    ones, 1 if no two share any. None: not measured; each token draws its experts evenly."""

    def num_touched(self, num_tokens: int) -> float:
        """Experts of one layer that a step of so many tokens reads."""
        if self.spread is None:
            share: float = (1.0 - self.num_per_token / self.num_experts) ** num_tokens
            return self.num_experts * (1.0 - share)
        return min(float(self.num_experts), self.num_per_token * float(num_tokens**self.spread))


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers that cache alike, where a model has several kinds of them."""

    name: str
    planes: dict[str, int]
    """Bytes of one entry by plane, all layers together."""
    tokens_per_entry: int = 1
    """Tokens that leave one entry together."""
    window: int | None = None
    """Newest tokens whose entries are kept; None: all."""

    def cache_group(self, tokens_per_block: int) -> CacheGroup:
        """The group in blocks of so many tokens, rounded up to whole entries."""
        planes = (Plane(name=name, bytes_per_token=num) for name, num in self.planes.items())
        return CacheGroup(
            name=self.name,
            kind="full" if self.window is None else "window",
            tokens_per_block=-(-tokens_per_block // self.tokens_per_entry) * self.tokens_per_entry,
            planes=tuple(planes),
            entries_per_token=Fraction(1, self.tokens_per_entry),
            window=self.window,
        )


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of one model, or of one rank's share of it; bf16 where nothing else is said."""

    name: str = ""
    num_layers: int
    hidden_size: int
    num_layer_params: int
    """Of all layers, without routed experts."""
    layer_bytes: int | None = None
    """Of these parameters as published; None: bf16."""
    num_head_params: int
    num_resident_params: int
    """Everything that lies in memory."""
    vocab_size: int
    max_model_len: int
    num_attention_layers: int
    """Layers that keep keys and values of every position."""
    attention_flops_per_pair: int
    """FLOP of one layer for one query and one key: scores and weighted values, all heads."""
    attention_flops_per_query: int = 0
    """FLOP of all layers for one query and the keys it meets in any context: window, selection."""
    num_kv_heads: int
    """Over which ranks divide keys and values; 1: a latent, which each rank holds whole."""
    kv_bytes_per_token: int
    """Held, all layers together, windows apart."""
    kv_read_bytes_per_token: int | None = None
    """Read of each position by decode attention; None: all that is held."""
    kv_read_bytes_per_row: int = 0
    """Read by decode attention in any context: window, selection."""
    launches_per_layer: int
    """Kernels of one layer in a decode step."""
    state_bytes: int = 0
    """Recurrent state of one sequence, read and written by every step."""
    prefill_overhead_s: float = 0.0
    """Added to every step that prefills at least `prefill_overhead_from` tokens."""
    prefill_overhead_from: int = 1
    experts: ExpertFigures | None = None
    groups: tuple[GroupFigures, ...] = ()
    """Of the cache; none: one of `kv_bytes_per_token`, and one of states if there are any."""

    def of_rank(self, num_ranks: int) -> "ModelFigures":
        """The share of one of so many tensor parallel ranks.

        Every product is divided; keys and values as far as there are heads.
        """
        if num_ranks == 1:
            return self
        divided = {name: -(-(getattr(self, name) or 0) // num_ranks) for name in _DIVIDED}
        if self.layer_bytes is None:
            divided["layer_bytes"] = None
        divided["kv_bytes_per_token"] = self.kv_bytes_per_token // min(num_ranks, self.num_kv_heads)
        experts = self.experts
        if experts is not None:
            num_params = -(-experts.num_params // num_ranks)
            experts = msgspec.structs.replace(experts, num_params=num_params)
        return msgspec.structs.replace(self, experts=experts, **divided)

    def weight_bytes(self, num_tokens: int) -> float:
        """Bytes of weights that a step of so many tokens reads."""
        num_bytes: float = self._layer_bytes + self.num_head_params * _BYTES_PER_PARAM
        if self.experts is not None:
            touched = self.experts.num_layers * self.experts.num_touched(num_tokens)
            num_bytes += touched * self.experts.num_params * self.experts.bytes_per_param
        return num_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory of the weights."""
        num_routed, routed_bytes = 0, 0.0
        if self.experts is not None:
            num_routed = (
                self.experts.num_layers * self.experts.num_experts * self.experts.num_params
            )
            routed_bytes = num_routed * self.experts.bytes_per_param
        num_others = self.num_resident_params - self.num_layer_params - num_routed
        return self._layer_bytes + num_others * _BYTES_PER_PARAM + math.ceil(routed_bytes)

    @property
    def _layer_bytes(self) -> int:
        if self.layer_bytes is not None:
            return self.layer_bytes
        return self.num_layer_params * _BYTES_PER_PARAM

    @property
    def num_active_params(self) -> int:
        """Parameters of the layers that one token is multiplied with."""
        experts = self.experts
        routed = experts.num_layers * experts.num_per_token * experts.num_params if experts else 0
        return self.num_layer_params + routed

    @property
    def state_block(self) -> int:
        """Positions whose keys and values take at least the bytes of one layer's state, in 16s.

        The modelled stack has pages of one size for both. So this is its block, and states are
        kept at multiples of it only: a prefill stops at the last one in the prompt.
        """
        state_bytes = self.state_bytes / (self.num_layers - self.num_attention_layers)
        kv_bytes = self.kv_bytes_per_token / self.num_attention_layers
        return -(-math.ceil(state_bytes / kv_bytes) // _POSITIONS_PER_PAGE) * _POSITIONS_PER_PAGE

    def cache_groups(self, tokens_per_block: int) -> tuple[CacheGroup, ...]:
        """What the scheduler's cache holds for this model.

        Args:
            tokens_per_block: of keys and values; rounded up to a multiple of a hybrid model's
                `state_block`, or of the tokens that share an entry.
        """
        if self.groups:
            return tuple(group.cache_group(tokens_per_block) for group in self.groups)
        plane = Plane(name="kv", bytes_per_token=self.kv_bytes_per_token)
        if not self.state_bytes:
            return (CacheGroup(name="full", tokens_per_block=tokens_per_block, planes=(plane,)),)
        size = -(-tokens_per_block // self.state_block) * self.state_block
        state = Plane(name="state", bytes_per_token=self.state_bytes)
        return (
            CacheGroup(name="full", tokens_per_block=size, planes=(plane,)),
            CacheGroup(
                name="state",
                kind="state",
                tokens_per_block=size,
                planes=(state,),
                resume=Resume(at_hints=False, output_tokens=size),
            ),
        )


class Overheads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a serving stack makes of a device. Shares are of the device's figures, in (0, 1]."""

    read_share: float
    """Of the streaming read, by matrix products of few rows."""
    product_share: float
    """Of the product rate, by products of many rows."""
    attention_share: float
    """Of the attention rate, by prefill attention."""
    decode_attention_share: float
    """Of the streaming read, by decode attention."""
    state_share: float
    """Of the streaming read, by the update of recurrent states."""
    step_s: float
    """Of every step, on the device: sampling, and the gap to the next step."""
    launch_s: float
    """Of every kernel in a replayed graph: its start and its end, when the device is not full."""
    host_step_s: float
    """Of every step, on the step thread."""
    host_row_s: float
    """Of every row, on the step thread."""
    request_s: float
    """Of every request, in the front process, one after the other."""
    prompt_token_s: float
    """The same, of every prompt token."""
    latency_s: float
    """Of every first token, between client and engine, both ways."""


class Figures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables."""

    device: dict[str, DeviceFigures]
    model: dict[str, ModelFigures]
    overheads: Overheads


@cache
def load_figures() -> Figures:
    """The tables of this package."""
    text = files("openinfer_sim").joinpath("figures.toml").read_text(encoding="utf-8")
    tables: dict[str, Any] = tomllib.loads(text)
    for kind in ("device", "model"):
        for name, table in tables[kind].items():
            table["name"] = name
    return msgspec.convert(tables, Figures)


def find_device(name: str) -> DeviceFigures:
    """A device by its name in the tables.

    Raises:
        UnknownFigures: naming the known ones.
    """
    return _find("device", name, load_figures().device)


def find_model(name: str) -> ModelFigures:
    """A model by its name in the tables.

    Raises:
        UnknownFigures: naming the known ones.
    """
    return _find("model", name, load_figures().model)


def _find(kind: str, name: str, table: Mapping[str, _Figures]) -> _Figures:
    if name not in table:
        raise UnknownFigures(kind, name, table)
    return table[name]
