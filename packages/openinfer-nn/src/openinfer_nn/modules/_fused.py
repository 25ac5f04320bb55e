"""Fused ops: a linear layer together with the norm, gate or addition next to it.

Each class is one line of a layer's arithmetic as one op of openinfer-kernels. In a step of few rows
that op is one kernel; in other steps its back end may run the parts in turn. A fused op shares the
weights of the modules that it is made of, and allocates none.
"""

import torch

from openinfer_kernels import (
    FusedAttentionSpec,
    FusedLinear,
    FusedLinearSpec,
    plan_fused_attention,
    plan_fused_linear,
)
from openinfer_nn._inputs import StepInputs
from openinfer_nn.modules._attention import PagedAttention
from openinfer_nn.modules._linear import Linear, MergedLinear
from openinfer_nn.modules._norm import RMSNorm
from openinfer_nn.modules._rotary import RotaryEmbedding


class NormLinear:
    """linear(norm(x)) as one op."""

    def __init__(self, norm: RMSNorm, linear: Linear) -> None:
        """Plans the op."""
        self._norm, self._linear = norm, linear
        self._op = _plan(linear, norm_eps=norm.eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [num_tokens, in_features] to [num_tokens, out_features]."""
        return self._op(x, self._linear.packed, self._norm.weight, None, None)


class NormGateUp:
    """silu(gate) * up as one op, where gate and up are the halves of gate_up(norm(x))."""

    def __init__(self, norm: RMSNorm, gate_up: MergedLinear) -> None:
        """Plans the op."""
        self._norm, self._gate_up = norm, gate_up
        self._op = _plan(gate_up, norm_eps=norm.eps, is_gated=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [num_tokens, in_features] to [num_tokens, out_features / 2]."""
        return self._op(x, self._gate_up.packed, self._norm.weight, None, None)


class AddLinear:
    """x + linear(h) as one op."""

    def __init__(self, linear: Linear) -> None:
        """Plans the op."""
        self._linear = linear
        self._op = _plan(linear, adds_residual=True)

    def __call__(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """Adds to a residual stream.

        Args:
            x: The residual stream, [num_tokens, out_features]. It is consumed: the op may
                overwrite it and return it.
            h: The linear layer's input, [num_tokens, in_features].
        """
        return self._op(h, self._linear.packed, None, x, None)


class FusedAttention:
    """Everything between the projections of an attention layer, as one op.

    Queries and keys are normalised head by head if the model has such norms, and rotated; keys and
    values are stored in the cache; the queries attend.
    """

    def __init__(
        self,
        attention: PagedAttention,
        rotary: RotaryEmbedding,
        head_norms: tuple[RMSNorm, RMSNorm] | None,
    ) -> None:
        """Plans the op.

        Args:
            attention: The attention, with the back end that was asked for.
            rotary: The angles of the rotation.
            head_norms: The norms of query and key heads, None for a model without them.
        """
        spec = attention.spec
        eps = None if head_norms is None else head_norms[0].eps
        self._attend = plan_fused_attention(
            FusedAttentionSpec(attention=spec, norm_eps=eps), attention.device, attention.backend
        )
        self._rotary = rotary
        self._head_norms = head_norms
        self._heads = (spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)

    def __call__(
        self, qkv: torch.Tensor, inputs: StepInputs, layer_cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Attends this step's queries to all cached tokens of their sequences and to this step's.

        Args:
            qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], the output of a
                `QKVLinear`. It is consumed.
            inputs: The step.
            layer_cache: Keys and values of this layer, from `CacheView.layer`. This step's are
                written there.

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        qkv = qkv.view(len(qkv), *self._heads)
        norms = self._head_norms
        weights = None if norms is None else (norms[0].weight, norms[1].weight)
        return self._attend(qkv, weights, self._rotary.cos_sin, inputs, *layer_cache)


def _plan(
    linear: Linear,
    *,
    norm_eps: float | None = None,
    is_gated: bool = False,
    adds_residual: bool = False,
) -> FusedLinear:
    spec = FusedLinearSpec(
        linear=linear.spec, norm_eps=norm_eps, is_gated=is_gated, adds_residual=adds_residual
    )
    return plan_fused_linear(spec, linear.device, linear.backend)
