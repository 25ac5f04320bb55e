"""The parts of a model file: linear layers, norms, rotary embedding, paged attention, loader.

A model is a module built from these. Its `forward(inputs: StepInputs, cache: CacheView)` returns
hidden rows. Ops are chosen when the model is built; a step only calls them.
"""

from openinfer_nn._cache import CacheSpec, CacheView, PlaneSpec
from openinfer_nn._inputs import StepInputs
from openinfer_nn.errors import CheckpointError, ModelError
from openinfer_nn.modules._activation import SiluAndMul
from openinfer_nn.modules._attention import PagedAttention
from openinfer_nn.modules._embedding import Embedding, LMHead
from openinfer_nn.modules._fused import AddLinear, FusedAttention, NormGateUp, NormLinear
from openinfer_nn.modules._linear import Linear, MergedLinear, QKVLinear
from openinfer_nn.modules._norm import RMSNorm
from openinfer_nn.modules._rotary import (
    LinearScaling,
    Llama3Scaling,
    RopeParameters,
    RopeScaling,
    RotaryEmbedding,
    YarnScaling,
    inverse_frequencies,
    rope_scaling,
)
from openinfer_nn.weights._dummy_weights import fill_dummy_weights
from openinfer_nn.weights._loader import load_weights, pack_weights, weight_bytes
from openinfer_nn.weights._safetensors import TensorEntry, read_checkpoint
from openinfer_nn.weights._weight_map import WeightMap

__all__ = [
    # Inputs and cache of a step
    "CacheSpec",
    "CacheView",
    "PlaneSpec",
    "StepInputs",
    # Modules
    "Embedding",
    "LMHead",
    "Linear",
    "MergedLinear",
    "PagedAttention",
    "QKVLinear",
    "RMSNorm",
    "RotaryEmbedding",
    "SiluAndMul",
    # Fused ops over modules
    "AddLinear",
    "FusedAttention",
    "NormGateUp",
    "NormLinear",
    # Rotary scalings
    "LinearScaling",
    "Llama3Scaling",
    "RopeParameters",
    "RopeScaling",
    "YarnScaling",
    "inverse_frequencies",
    "rope_scaling",
    # Checkpoints
    "TensorEntry",
    "WeightMap",
    "fill_dummy_weights",
    "load_weights",
    "pack_weights",
    "read_checkpoint",
    "weight_bytes",
    # Errors
    "CheckpointError",
    "ModelError",
]
