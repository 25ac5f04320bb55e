"""What a model file is written in: linears, norms, rotary embedding, paged attention, loader.

A model is a module built from these whose `forward(inputs: StepInputs, cache: CacheView)` returns
hidden rows. Ops are chosen when it is built; a step only calls them.
"""

from openinfer_nn._cache import CacheSpec, CacheView, PlaneSpec
from openinfer_nn._inputs import StepInputs
from openinfer_nn.errors import CheckpointError, ModelError
from openinfer_nn.modules._attention import Attention
from openinfer_nn.modules._embedding import Embedding, LMHead
from openinfer_nn.modules._linear import Linear, MergedLinear, QKVLinear
from openinfer_nn.modules._norm import RMSNorm
from openinfer_nn.modules._rotary import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    RotaryEmbedding,
    YarnScaling,
    inverse_frequencies,
)
from openinfer_nn.weights._loader import load_weights, pack_weights, weight_bytes
from openinfer_nn.weights._safetensors import TensorEntry, read_checkpoint
from openinfer_nn.weights._weight_map import WeightMap

__all__ = [
    # What a step reads and what it keeps
    "CacheSpec",
    "CacheView",
    "PlaneSpec",
    "StepInputs",
    # Modules
    "Attention",
    "Embedding",
    "LMHead",
    "Linear",
    "MergedLinear",
    "QKVLinear",
    "RMSNorm",
    "RotaryEmbedding",
    # Rotary scalings
    "LinearScaling",
    "Llama3Scaling",
    "RopeScaling",
    "YarnScaling",
    "inverse_frequencies",
    # Checkpoints
    "TensorEntry",
    "WeightMap",
    "load_weights",
    "pack_weights",
    "read_checkpoint",
    "weight_bytes",
    # Errors
    "CheckpointError",
    "ModelError",
]
