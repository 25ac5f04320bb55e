"""Qwen3 dense, top to bottom: attention, MLP, layer, model, weight names.

A decoder-only transformer with grouped-query attention, an RMS norm on every query and key head
before the rotation, a SwiGLU MLP, and a norm before each of the two (Qwen3 technical report, 2025).
The configuration is in `config.py`, which needs no torch.

Shapes in comments:
    T  tokens of the step, all sequences one after another
    H  query heads, KVH key and value heads, D dimensions of a head
    C  width of the residual stream (hidden_size), I width of the MLP, V vocabulary

A step is ragged: there is no batch dimension. `StepInputs` says which token belongs to which
sequence and where its keys lie.

The `forward` methods are the arithmetic. `FusedLayer` computes the same layer in five fused ops,
and is what an engine runs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from openinfer_kernels import Quantization
from openinfer_nn import (
    AddLinear,
    CacheSpec,
    CacheView,
    Embedding,
    FusedAttention,
    Linear,
    LMHead,
    MergedLinear,
    NormGateUp,
    NormLinear,
    PagedAttention,
    PlaneSpec,
    QKVLinear,
    RMSNorm,
    RotaryEmbedding,
    SiluAndMul,
    StepInputs,
    WeightMap,
    rope_scaling,
)
from openinfer_qwen3.config import Qwen3Config


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """Device, dtypes and back ends that all parts of a model are built for."""

    device: torch.device | str
    dtype: torch.dtype
    block_size: int
    attention_backend: str
    quantization: Quantization | None

    @property
    def module_args(self) -> dict[str, Any]:
        """Arguments of every module."""
        return {"device": self.device, "dtype": self.dtype}

    @property
    def linear_args(self) -> dict[str, Any]:
        """Arguments of every linear layer."""
        return {**self.module_args, "quantization": self.quantization}


class Qwen3Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, config: Qwen3Config, rotary: RotaryEmbedding, build: _Build) -> None:
        """Allocates the projections and the two head norms."""
        super().__init__()
        head_dim, eps = config.head_dim, config.rms_norm_eps
        self.qkv_proj = QKVLinear(
            config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            **build.linear_args,
        )
        # One weight of D numbers for all heads.
        self.q_norm = RMSNorm(head_dim, eps=eps, **build.module_args)
        self.k_norm = RMSNorm(head_dim, eps=eps, **build.module_args)
        self.rotary = rotary
        self.attention = PagedAttention(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            block_size=build.block_size,
            scale=head_dim**-0.5,
            backend=build.attention_backend,
            **build.module_args,
        )
        self.o_proj = Linear(config.num_heads * head_dim, config.hidden_size, **build.linear_args)

    def forward(
        self, h: torch.Tensor, inputs: StepInputs, layer_cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Mixes each token with those before it in its sequence: [T, C] to [T, C]."""
        q, k, v = self.qkv_proj.split_heads(h)  # [T, H, D], [T, KVH, D], [T, KVH, D]
        q, k = self.rotary(self.q_norm(q), self.k_norm(k), inputs.positions)
        heads = self.attention(q, k, v, inputs, layer_cache)  # [T, H * D]
        return self.o_proj(heads)  # type: ignore[no-any-return]


class Qwen3MLP(nn.Module):
    """The gated MLP: down(silu(gate(h)) * up(h))."""

    def __init__(self, config: Qwen3Config, build: _Build) -> None:
        """Allocates gate and up as one linear layer, and down."""
        super().__init__()
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.gate_up_proj = MergedLinear(hidden, (intermediate, intermediate), **build.linear_args)
        self.silu_and_mul = SiluAndMul(intermediate, **build.module_args)
        self.down_proj = Linear(intermediate, hidden, **build.linear_args)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Maps [T, C] to [T, C]."""
        gate_up = self.gate_up_proj(h)  # [T, 2 I]
        return self.down_proj(self.silu_and_mul(gate_up))  # type: ignore[no-any-return]


class Qwen3Layer(nn.Module):
    """Attention and MLP, each after a norm and added to the residual stream.

    Attributes:
        fused: The same arithmetic in fused ops; None where the layer runs as `forward` is written.
    """

    def __init__(
        self, config: Qwen3Config, rotary: RotaryEmbedding, build: _Build, *, is_fused: bool
    ) -> None:
        """Allocates both halves and their norms."""
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_norm = RMSNorm(hidden, eps=eps, **build.module_args)
        self.attention = Qwen3Attention(config, rotary, build)
        self.post_attention_norm = RMSNorm(hidden, eps=eps, **build.module_args)
        self.mlp = Qwen3MLP(config, build)
        self.fused = FusedLayer(self) if is_fused else None

    def forward(
        self, x: torch.Tensor, inputs: StepInputs, layer_cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Maps the residual stream [T, C], which may be overwritten, to [T, C]."""
        if self.fused is not None:
            return self.fused(x, inputs, layer_cache)
        h = self.input_norm(x)
        x = x + self.attention(h, inputs, layer_cache)
        h = self.post_attention_norm(x)
        return x + self.mlp(h)  # type: ignore[no-any-return]


class FusedLayer:
    """`Qwen3Layer.forward` in five fused ops over the layer's own weights.

    A decode step takes as long as reading the weights. A separate kernel for a norm, a gate or an
    addition takes as long as reading a few more megabytes, so each line below is one kernel.
    """

    def __init__(self, layer: Qwen3Layer) -> None:
        """Plans the ops."""
        attention, mlp = layer.attention, layer.mlp
        self._norm_qkv = NormLinear(layer.input_norm, attention.qkv_proj)
        self._attend = FusedAttention(
            attention.attention, attention.rotary, (attention.q_norm, attention.k_norm)
        )
        self._add_o = AddLinear(attention.o_proj)
        self._norm_gate_up = NormGateUp(layer.post_attention_norm, mlp.gate_up_proj)
        self._add_down = AddLinear(mlp.down_proj)

    def __call__(
        self, x: torch.Tensor, inputs: StepInputs, layer_cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Maps the residual stream [T, C], which may be overwritten, to [T, C]."""
        qkv = self._norm_qkv(x)  # qkv_proj(input_norm(x))
        heads = self._attend(qkv, inputs, layer_cache)  # norms, rotation, attention
        x = self._add_o(x, heads)  # x + o_proj(heads)
        h = self._norm_gate_up(x)  # silu(gate) * up, of gate_up_proj(post_attention_norm(x))
        return self._add_down(x, h)  # x + down_proj(h)


class Qwen3Model(nn.Module):
    """The whole network. Its weights are allocated, not initialised: see `weight_map`.

    Build and call it under `torch.inference_mode`. It owns its weights and nothing else: the caller
    owns inputs and cache. One thread may call it at a time.
    """

    def __init__(
        self,
        config: Qwen3Config,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        block_size: int,
        max_model_len: int | None = None,
        attention_backend: str = "auto",
        quantization: Quantization | None = None,
        is_fused: bool = True,
    ) -> None:
        """Allocates the weights and plans every op.

        Args:
            config: The shape.
            device: Where weights and cache lie.
            dtype: Dtype of weights, activations and cache.
            block_size: Tokens per cache block.
            max_model_len: Longest sequence to prepare for; the configuration's if None.
            attention_backend: Back end of the attention.
            quantization: Quantization of all linear layers and the head. Norms keep the dtype, and
                so does the table of an embedding that is not also the head.
            is_fused: Whether layers run in fused ops; False runs each as `forward` is written.

        Raises:
            BackendUnavailable: The attention back end, or the quantization, cannot run here.
        """
        super().__init__()
        self.config = config
        self.dtype = dtype
        build = _Build(
            device=device,
            dtype=dtype,
            block_size=block_size,
            attention_backend=attention_backend,
            quantization=quantization,
        )
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, **build.module_args)
        rotary = RotaryEmbedding(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            theta=config.rope.theta,
            scaling=rope_scaling(config.rope),
            max_positions=max_model_len or config.max_position,
            **build.module_args,
        )
        self.layers = nn.ModuleList(
            Qwen3Layer(config, rotary, build, is_fused=is_fused) for _ in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, **build.module_args)
        self.lm_head = LMHead(
            config.vocab_size,
            config.hidden_size,
            tied_to=self.embed_tokens if config.tie_word_embeddings else None,
            **build.linear_args,
        )

    def forward(self, inputs: StepInputs, cache: CacheView) -> torch.Tensor:
        """Runs a step and writes its keys and values to the cache.

        Returns:
            [T, C], the normalised hidden state of every token.
        """
        x: torch.Tensor = self.embed_tokens(inputs.token_ids)  # [T, C]
        for index, layer in enumerate(self.layers):
            x = layer(x, inputs, cache.layer(index))
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Maps selected hidden rows, [n, C], to logits [n, V], written to `out` if it is given.

        Logits are in the model's dtype, as in training. Temperature, softmax and logprobs need
        float32; the sampler widens the logits when it reads them.
        """
        return self.lm_head(hidden, out)  # type: ignore[no-any-return]

    def cache_spec(self) -> CacheSpec:
        """Returns what is cached: keys and values of every layer, for every token."""
        heads = {"num_heads": self.config.num_kv_heads, "head_dim": self.config.head_dim}
        return CacheSpec(
            group="full",
            kind="full",
            num_layers=self.config.num_layers,
            planes=(PlaneSpec(name="k", **heads), PlaneSpec(name="v", **heads)),
            dtype=self.dtype,
        )

    def weight_map(self) -> WeightMap:
        """Returns the destination of each checkpoint tensor, by transformers' names."""
        names = WeightMap()
        names.add("model.embed_tokens.weight", self.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Qwen3Layer)
            _add_layer(names, f"model.layers.{index}", layer)
        names.add("model.norm.weight", self.norm.weight)
        if self.config.tie_word_embeddings:
            # Some checkpoints store the shared table twice. If the second copy differs,
            # transformers does not tie them, and this model would compute something else.
            names.repeat(
                "lm_head.weight",
                of="model.embed_tokens.weight",
                otherwise="it differs from model.embed_tokens.weight although config.json sets "
                "tie_word_embeddings; if the model has a head of its own, set that field to false",
            )
        else:
            names.add("lm_head.weight", self.lm_head.weight)
        names.ignore("model.layers.*.self_attn.rotary_emb.inv_freq")  # computed, never learned
        return names


def _add_layer(names: WeightMap, prefix: str, layer: Qwen3Layer) -> None:
    attention, mlp = layer.attention, layer.mlp
    q, k, v = attention.qkv_proj.parts()
    gate, up = mlp.gate_up_proj.parts()
    for name, weight in {
        "input_layernorm": layer.input_norm.weight,
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.q_norm": attention.q_norm.weight,
        "self_attn.k_norm": attention.k_norm.weight,
        "self_attn.o_proj": attention.o_proj.weight,
        "post_attention_layernorm": layer.post_attention_norm.weight,
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": mlp.down_proj.weight,
    }.items():
        names.add(f"{prefix}.{name}.weight", weight)
