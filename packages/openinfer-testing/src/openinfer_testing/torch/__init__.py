"""Tiny checkpoints and the accuracy gate, which compares a model path with transformers.

It needs the extra `openinfer-testing[torch]`. `openinfer_testing` itself does not import it.
"""

from openinfer_testing.torch._gate import (
    MAX_ERROR_RATIO,
    MAX_FLOAT32_ERROR,
    GateReport,
    LogprobPath,
    next_token_only,
    run_gate,
)
from openinfer_testing.torch._model_paths import (
    MODEL_PATHS,
    CachedSequence,
    ModelHarness,
    ModelPath,
    decoded_at_length,
)
from openinfer_testing.torch._reference import (
    FloatArray,
    reference_logits,
    release_references,
    teacher_forced_logprobs,
)
from openinfer_testing.torch._tiny import TINY_CHECKPOINTS, TinyCheckpoint
from openinfer_testing.torch._tokenizer import CHAT_TEMPLATE, train_tokenizer
from openinfer_testing.torch._write_hf import MIN_LOGIT_STD, write_hf

__all__ = [
    # Tiny checkpoints
    "CHAT_TEMPLATE",
    "MIN_LOGIT_STD",
    "TINY_CHECKPOINTS",
    "TinyCheckpoint",
    "train_tokenizer",
    "write_hf",
    # The reference: transformers
    "FloatArray",
    "reference_logits",
    "release_references",
    "teacher_forced_logprobs",
    # A model without an engine
    "CachedSequence",
    "MODEL_PATHS",
    "ModelHarness",
    "ModelPath",
    "decoded_at_length",
    # The gate
    "GateReport",
    "LogprobPath",
    "MAX_ERROR_RATIO",
    "MAX_FLOAT32_ERROR",
    "next_token_only",
    "run_gate",
]
