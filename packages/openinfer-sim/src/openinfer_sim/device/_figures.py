"""Figures of devices, models and overheads, read from `figures.toml`."""

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
"""Page sizes of keys and values, in positions, are multiples of this number."""


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one device, and the rates that single kernels reach on it."""

    name: str = ""
    title: str
    memory_bytes: int
    read_bytes_per_s: float
    """Rate at which a kernel reads device memory sequentially."""
    product_flops: float
    """FLOP/s of a bf16 matrix product."""
    attention_flops: float
    """FLOP/s of causal prefill attention."""
    link_bytes_per_s: float
    """One-way bandwidth between the devices of a host that collectives reach."""
    link_latency_s: float
    """Seconds that an all-reduce of a few bytes takes."""


_DIVIDED = (
    "num_layer_params", "layer_bytes", "num_head_params", "num_resident_params",
    "attention_flops_per_pair", "attention_flops_per_query", "state_bytes",
)  # fmt: skip
"""Fields that tensor parallel ranks divide evenly."""


class ExpertFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Routed experts of a mixture model."""

    num_layers: int
    num_experts: int
    """Number of experts in one layer."""
    num_per_token: int
    num_params: int
    """Parameters of one expert."""
    bytes_per_param: float = _BYTES_PER_PARAM
    """Bytes of one parameter as published, with the scales of quantized weights."""
    spread: float | None = None
    """Exponent s: a step of n tokens reads n**s times the experts of one token.

    0 if every token takes the same experts, 1 if no two tokens share any. None if it was not
    measured: then each token draws its experts evenly.
    """

    def num_touched(self, num_tokens: int) -> float:
        """Returns the number of experts of one layer that a step of `num_tokens` reads."""
        if self.spread is None:
            share: float = (1.0 - self.num_per_token / self.num_experts) ** num_tokens
            return self.num_experts * (1.0 - share)
        return min(float(self.num_experts), self.num_per_token * float(num_tokens**self.spread))


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cache group of a model with several kinds of cache entries."""

    name: str
    planes: dict[str, int]
    """Bytes of one entry by plane, summed over the group's layers."""
    tokens_per_entry: int = 1
    """Number of tokens that share one entry."""
    window: int | None = None
    """Number of newest tokens whose entries are kept. None keeps all."""

    def cache_group(self, tokens_per_block: int) -> CacheGroup:
        """Returns the cache group. `tokens_per_block` is rounded up to whole entries."""
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
    """Sizes of one model, or of one rank's share of it. Weights are bf16 unless said otherwise."""

    name: str = ""
    num_layers: int
    hidden_size: int
    num_layer_params: int
    """Parameters of all layers, without routed experts."""
    layer_bytes: int | None = None
    """Bytes of these parameters as published. None if they are bf16."""
    num_head_params: int
    num_resident_params: int
    """All parameters in memory."""
    vocab_size: int
    max_model_len: int
    num_attention_layers: int
    """Number of layers that keep keys and values of every position."""
    attention_flops_per_pair: int
    """FLOP of one layer for one query and one key: scores and weighted values, all heads."""
    attention_flops_per_query: int = 0
    """Attention FLOP of one query in all layers that do not grow with the context: attention to the
    window and to selected entries.
    """
    num_kv_heads: int
    """Number of heads among which ranks divide keys and values. 1 for MLA: each rank holds the
    latent.
    """
    kv_bytes_per_token: int
    """Bytes of keys and values held for a token, summed over layers, without windows."""
    kv_read_bytes_per_token: int | None = None
    """Bytes that decode attention reads for each position. None if it reads all bytes held."""
    kv_read_bytes_per_row: int = 0
    """Bytes that decode attention reads for a row whatever its context: window, selected entries.
    """
    launches_per_layer: int
    """Number of kernels of one layer in a decode step."""
    state_bytes: int = 0
    """Bytes of one sequence's recurrent state, which every step reads and writes."""
    prefill_overhead_s: float = 0.0
    """Seconds added to every step that prefills at least `prefill_overhead_from` tokens."""
    prefill_overhead_from: int = 1
    experts: ExpertFigures | None = None
    groups: tuple[GroupFigures, ...] = ()
    """Cache groups. If empty, the model has one full group of `kv_bytes_per_token`, and a state
    group if `state_bytes` is not 0.
    """

    def of_rank(self, num_ranks: int) -> "ModelFigures":
        """Returns the share of one of `num_ranks` tensor parallel ranks.

        Every matrix product is divided by `num_ranks`; keys and values by at most the number of
        heads.
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
        """Returns the bytes of weights that a step of `num_tokens` reads."""
        num_bytes: float = self._layer_bytes + self.num_head_params * _BYTES_PER_PARAM
        if self.experts is not None:
            touched = self.experts.num_layers * self.experts.num_touched(num_tokens)
            num_bytes += touched * self.experts.num_params * self.experts.bytes_per_param
        return num_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights in memory."""
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
        """Number of layer parameters that take part in the products of one token."""
        experts = self.experts
        routed = experts.num_layers * experts.num_per_token * experts.num_params if experts else 0
        return self.num_layer_params + routed

    @property
    def state_block(self) -> int:
        """Block size in positions of a hybrid model, a multiple of 16.

        The modelled stack has pages of one size for keys and values and for states. So a block is
        the smallest multiple of 16 positions whose keys and values in one layer take at least as
        many bytes as one layer's state. States are kept only at block boundaries, so a prefill
        stops at the last block boundary of the prompt.
        """
        state_bytes = self.state_bytes / (self.num_layers - self.num_attention_layers)
        kv_bytes = self.kv_bytes_per_token / self.num_attention_layers
        return -(-math.ceil(state_bytes / kv_bytes) // _POSITIONS_PER_PAGE) * _POSITIONS_PER_PAGE

    def cache_groups(self, tokens_per_block: int) -> tuple[CacheGroup, ...]:
        """Returns the cache groups of this model.

        Args:
            tokens_per_block: Block size of keys and values. It is rounded up to a multiple of a
                hybrid model's `state_block`, or of the tokens that share an entry.
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
    """Overheads of a serving stack. Shares are relative to the device's rates, in (0, 1]."""

    read_share: float
    """Share of the streaming read rate that matrix products of few rows reach."""
    product_share: float
    """Share of the product rate that products of many rows reach."""
    attention_share: float
    """Share of the attention rate that prefill attention reaches."""
    decode_attention_share: float
    """Share of the streaming read rate that decode attention reaches."""
    state_share: float
    """Share of the streaming read rate that the update of recurrent states reaches."""
    step_s: float
    """Seconds of every step on the device: sampling, and the gap before the next step."""
    launch_s: float
    """Seconds of every kernel in a replayed graph: its ramp-up and ramp-down."""
    host_step_s: float
    """Seconds of every step on the step thread."""
    host_row_s: float
    """Seconds of every row on the step thread."""
    request_s: float
    """Seconds of every request in the front process, which handles one request at a time."""
    prompt_token_s: float
    """Seconds of every prompt token in the front process."""
    latency_s: float
    """Seconds of a round trip between client and engine."""


class Figures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tables."""

    device: dict[str, DeviceFigures]
    model: dict[str, ModelFigures]
    overheads: Overheads


@cache
def load_figures() -> Figures:
    """Returns the tables of this package."""
    text = files("openinfer_sim").joinpath("figures.toml").read_text(encoding="utf-8")
    tables: dict[str, Any] = tomllib.loads(text)
    for kind in ("device", "model"):
        for name, table in tables[kind].items():
            table["name"] = name
    return msgspec.convert(tables, Figures)


def find_device(name: str) -> DeviceFigures:
    """Returns the figures of a device.

    Raises:
        UnknownFigures: The tables have no such device. The message lists the known ones.
    """
    return _find("device", name, load_figures().device)


def find_model(name: str) -> ModelFigures:
    """Returns the figures of a model.

    Raises:
        UnknownFigures: The tables have no such model. The message lists the known ones.
    """
    return _find("model", name, load_figures().model)


def _find(kind: str, name: str, table: Mapping[str, _Figures]) -> _Figures:
    if name not in table:
        raise UnknownFigures(kind, name, table)
    return table[name]
