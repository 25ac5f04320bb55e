"""Qwen3 dense, top to bottom: attention, MLP, layer, model, weight names.

A decoder-only transformer with grouped-query attention, an RMS norm on every query and key head
before the rotation, a SwiGLU MLP, and norms in front of each (Qwen3 technical report, 2025). The
configuration is in `config.py`, where no torch is needed to read it.

Shapes in comments:
    T  tokens of the step, of all sequences, one sequence after another
    H  query heads, KVH key and value heads, D dimensions of a head
    C  width of the residual stream (hidden_size), I width of the MLP, V vocabulary

A step is ragged: there is no batch dimension. Which token belongs to which sequence, and where its
keys lie, is in `StepInputs`.
"""

import torch
from torch import nn

from openinfer_kernels import Quantization
from openinfer_nn import (
    Attention,
    CacheSpec,
    CacheView,
    Embedding,
    Linear,
    LinearScaling,
    Llama3Scaling,
    LMHead,
    MergedLinear,
    PlaneSpec,
    QKVLinear,
    RMSNorm,
    RopeScaling,
    RotaryEmbedding,
    StepInputs,
    WeightMap,
    YarnScaling,
)
from openinfer_qwen3.config import Qwen3Config, RopeConfig


def rope_scaling(rope: RopeConfig) -> RopeScaling | None:
    """Returns the scaling of the rotary frequencies that a configuration names."""
    match rope.type:
        case "default":
            return None
        case "linear":
            return LinearScaling(**rope.options)
        case "yarn":
            return YarnScaling(original_max_position=rope.original_max_position, **rope.options)
        case "llama3":
            return Llama3Scaling(original_max_position=rope.original_max_position, **rope.options)


class Qwen3Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys, behind a norm."""

    def __init__(
        self,
        config: Qwen3Config,
        rotary: RotaryEmbedding,
        norm: RMSNorm,
        *,
        block_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
        attention_backend: str,
        quantization: Quantization | None,
    ) -> None:
        """Allocates the projections and the two head norms."""
        super().__init__()
        head_dim, eps = config.head_dim, config.rms_norm_eps
        self.qkv_proj = QKVLinear(
            config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            norm=norm,
            device=device,
            dtype=dtype,
            quantization=quantization,
        )
        self.q_norm = RMSNorm(head_dim, eps=eps, device=device, dtype=dtype)
        self.k_norm = RMSNorm(head_dim, eps=eps, device=device, dtype=dtype)
        self.attention = Attention(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            scale=head_dim**-0.5,
            rotary=rotary,
            head_norms=(self.q_norm, self.k_norm),  # over D, one weight for all heads
            device=device,
            dtype=dtype,
            backend=attention_backend,
        )
        self.o_proj = Linear(
            config.num_heads * head_dim,
            config.hidden_size,
            adds_residual=True,
            device=device,
            dtype=dtype,
            quantization=quantization,
        )

    def forward(
        self, x: torch.Tensor, inputs: StepInputs, layer_cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Mixes each token with those before it in its sequence: [T, C], the stream, to [T, C]."""
        qkv = self.qkv_proj.project(x)  # [T, H + 2 KVH, D]
        heads = self.attention(qkv, inputs, layer_cache)  # [T, H * D]
        return self.o_proj(heads, x)  # type: ignore[no-any-return]


class Qwen3MLP(nn.Module):
    """A gated MLP behind a norm: x + down(silu(gate(norm(x))) * up(norm(x)))."""

    def __init__(
        self,
        config: Qwen3Config,
        norm: RMSNorm,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization | None,
    ) -> None:
        """Allocates gate and up as one product, and down."""
        super().__init__()
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.gate_up_proj = MergedLinear(
            hidden,
            (intermediate, intermediate),
            norm=norm,
            is_gated=True,
            device=device,
            dtype=dtype,
            quantization=quantization,
        )
        self.down_proj = Linear(
            intermediate,
            hidden,
            adds_residual=True,
            device=device,
            dtype=dtype,
            quantization=quantization,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [T, C], the stream, to [T, C]."""
        return self.down_proj(self.gate_up_proj(x), x)  # type: ignore[no-any-return]


class Qwen3Layer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream.

    The products beside them apply the norms and make the sums, see `openinfer_nn.Linear`.
    """

    def __init__(
        self,
        config: Qwen3Config,
        rotary: RotaryEmbedding,
        *,
        block_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
        attention_backend: str,
        quantization: Quantization | None,
    ) -> None:
        """Allocates both halves and their norms."""
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_norm = RMSNorm(hidden, eps=eps, device=device, dtype=dtype)
        self.attention = Qwen3Attention(
            config,
            rotary,
            self.input_norm,
            block_size=block_size,
            device=device,
            dtype=dtype,
            attention_backend=attention_backend,
            quantization=quantization,
        )
        self.post_attention_norm = RMSNorm(hidden, eps=eps, device=device, dtype=dtype)
        self.mlp = Qwen3MLP(
            config,
            self.post_attention_norm,
            device=device,
            dtype=dtype,
            quantization=quantization,
        )

    def forward(
        self, x: torch.Tensor, inputs: StepInputs, layer_cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Maps [T, C], the residual stream, which is consumed, to [T, C]."""
        x = self.attention(x, inputs, layer_cache)
        return self.mlp(x)  # type: ignore[no-any-return]


class Qwen3Model(nn.Module):
    """The whole network. Its weights are allocated, not initialised: see `weight_map`.

    Build and call it under `torch.inference_mode`. It owns its weights and nothing else: inputs and
    cache are the caller's, and one thread calls it at a time.
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
    ) -> None:
        """Allocates the weights and plans every op.

        Args:
            config: The shape.
            device: Where weights and cache lie.
            dtype: Of weights, activations and cache.
            block_size: Tokens a cache block holds.
            max_model_len: Longest sequence to prepare for; the configuration's if None.
            attention_backend: Of `paged_attention`.
            quantization: Of the weights of all products, the head's included; norms, and the
                table of an embedding that is not the head too, keep the dtype.

        Raises:
            BackendUnavailable: The attention backend, or the quantization, cannot run here.
        """
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, device=device, dtype=dtype
        )
        rotary = RotaryEmbedding(
            head_dim=config.head_dim,
            theta=config.rope.theta,
            scaling=rope_scaling(config.rope),
            max_positions=max_model_len or config.max_position,
            device=device,
        )
        self.layers = nn.ModuleList(
            Qwen3Layer(
                config,
                rotary,
                block_size=block_size,
                device=device,
                dtype=dtype,
                attention_backend=attention_backend,
                quantization=quantization,
            )
            for _ in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, device=device, dtype=dtype)
        self.lm_head = LMHead(
            config.vocab_size,
            config.hidden_size,
            tied_to=self.embed_tokens if config.tie_word_embeddings else None,
            device=device,
            dtype=dtype,
            quantization=quantization,
        )

    def forward(self, inputs: StepInputs, cache: CacheView) -> torch.Tensor:
        """Runs a step, writing its keys and values to the cache.

        Returns:
            [T, C], the normalised hidden state of every token.
        """
        x: torch.Tensor = self.embed_tokens(inputs.token_ids)  # [T, C]
        for index, layer in enumerate(self.layers):
            x = layer(x, inputs, cache.layer(index))
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Maps hidden rows [n, C], those wanted, to logits [n, V], in `out` if there is one.

        They are in the model's dtype, as it was trained. What follows (temperature, softmax,
        logprobs) is for float32: it widens them where it reads them.
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
        """Returns where each tensor of a checkpoint goes, by transformers' names."""
        names = WeightMap()
        names.add("model.embed_tokens.weight", self.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Qwen3Layer)
            _add_layer(names, f"model.layers.{index}", layer)
        names.add("model.norm.weight", self.norm.weight)
        if self.config.tie_word_embeddings:
            # Some checkpoints store the shared table twice. Where the head is another one,
            # transformers leaves them untied.
            names.repeat(
                "lm_head.weight",
                of="model.embed_tokens.weight",
                otherwise="it is not model.embed_tokens.weight again, as tie_word_embeddings in "
                "config.json says; write false there if the model has a head of its own",
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
