"""Sampling parameters that a checkpoint recommends, and how they complete a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openinfer_contract import (
    EngineInfo,
    GenerateRequest,
    Sampling,
    StopRules,
    check_request,
    pack_ids,
)
from openinfer_text._checkpoint_files import read_number

_FILE = "generation_config.json"
_SEED_SPAN = 2**64
_DEFAULT_OF_FIELD = {
    "sampling.temperature": "temperature",
    "sampling.top_k": "top_k",
    "sampling.top_p": "top_p",
    "sampling.min_p": "min_p",
    "sampling.repetition_penalty": "repetition_penalty",
    "stop.max_tokens": "max_new_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Recommendations of generation_config.json; None for a field that it lacks."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "GenerationDefaults":
        """Reads a generation_config.json.

        Raises:
            CheckpointTextError: a field is not a number; names it.
        """
        return cls(
            temperature=read_number(_FILE, config, "temperature", float),
            top_k=read_number(_FILE, config, "top_k", int),
            top_p=read_number(_FILE, config, "top_p", float),
            min_p=read_number(_FILE, config, "min_p", float),
            repetition_penalty=read_number(_FILE, config, "repetition_penalty", float),
            max_new_tokens=read_number(_FILE, config, "max_new_tokens", int),
        )

    def sampling(
        self,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        seed: int | None = None,
        sample: int = 0,
        logit_bias: Mapping[int, float] | None = None,
        allowed_token_ids: Sequence[int] | None = None,
        bad_words: tuple[bytes, ...] = (),
    ) -> Sampling:
        """Returns the contract's sampling parameters for those of a client.

        Args:
            temperature: None, here and below, means that the client sent no value. Then the
                checkpoint's default applies, else the neutral value.
            top_k: 0 and -1, the spellings of other engines, switch it off.
            top_p: as `Sampling`.
            min_p: as `Sampling`.
            repetition_penalty: as `Sampling`.
            presence_penalty: as `Sampling`.
            frequency_penalty: as `Sampling`.
            seed: seed of the prompt. Sample `i` of the prompt uses `seed + i`.
            sample: index of the sample within the prompt, from 0.
            logit_bias: bias by token id.
            allowed_token_ids: the only tokens that can be sampled.
            bad_words: token sequences that must not be sampled, as u32 columns.
        """
        k = self.top_k if top_k is None else top_k
        return Sampling(
            temperature=_first(temperature, self.temperature, 1.0),
            top_k=None if k in (None, 0, -1) else k,
            top_p=_first(top_p, self.top_p, 1.0),
            min_p=_first(min_p, self.min_p, 0.0),
            repetition_penalty=_first(repetition_penalty, self.repetition_penalty, 1.0),
            presence_penalty=_first(presence_penalty, None, 0.0),
            frequency_penalty=_first(frequency_penalty, None, 0.0),
            seed=None if seed is None else (seed + sample) % _SEED_SPAN,
            logit_bias=tuple((logit_bias or {}).items()),
            allowed_token_ids=None if allowed_token_ids is None else pack_ids(allowed_token_ids),
            bad_words=bad_words,
        )

    def honoured_by(
        self, info: EngineInfo
    ) -> tuple["GenerationDefaults", Mapping[str, float | int]]:
        """Returns the defaults that an engine accepts, and the dropped ones by field.

        Clients did not ask for a checkpoint's default, so an unsupported default must not cause a
        400.
        """
        kept, dropped = self, {}
        while (field := kept._refused_field(info)) is not None:
            dropped[field] = getattr(kept, field)
            kept = replace(kept, **{field: None})
        return kept, dropped

    def _refused_field(self, info: EngineInfo) -> str | None:
        probe = GenerateRequest(
            request_id="defaults",
            prompt_token_ids=pack_ids((0,)),
            sampling=self.sampling(),
            stop=StopRules(max_tokens=1 if self.max_new_tokens is None else self.max_new_tokens),
        )
        rejected = check_request(probe, info)
        return None if rejected is None else _DEFAULT_OF_FIELD.get(rejected.field)


def _first(asked: float | None, default: float | None, neutral: float) -> float:
    if asked is not None:
        return asked
    return neutral if default is None else default
