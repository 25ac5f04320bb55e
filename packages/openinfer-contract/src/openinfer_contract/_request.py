"""Requests: what a client asks of an engine.

Every struct here is frozen, travels as an array, and grows only at its end, with defaults. Two
sides that share a contract version can therefore differ in their package versions. Stop strings,
chat templates, `n` and the parameter names of HTTP APIs belong to the front end, which lowers them
to these structs.
"""

from typing import Literal

from msgspec import Struct

from openinfer_contract._columns import num_ids

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature sampling is greedy: it takes the argmax, without randomness."""


class Sampling(Struct, frozen=True, array_like=True, kw_only=True):
    """How a token is drawn from the logits of one position.

    The controls apply in this order: allowed ids, stop ids before min_tokens, bad words and
    logit_bias; repetition, frequency and presence penalty; temperature; min_p; top_k; top_p; draw.
    Filters keep tokens that tie with the last one kept. None switches a control off.
    """

    temperature: float = 1.0
    """Divides the logits. 0, or anything below `GREEDY_TEMPERATURE`, takes the argmax."""
    top_k: int | None = None
    """Keep the k largest logits, k >= 1."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this, in (0, 1]. The probabilities
    are those after min_p and top_k."""
    min_p: float = 0.0
    """Drop tokens whose probability is below this fraction of the largest one, in [0, 1]."""
    seed: int | None = None
    """Seed of a counter-based generator: a draw depends on (seed, position) alone. None: the engine
    chooses a seed."""
    repetition_penalty: float = 1.0
    """For ids in the prompt or the output: divides a positive logit and multiplies a negative one.
    In [0.01, 100]."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every id in the output, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of an id once for each time it is in the output, in [-2, 2]."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(id, value added to its logit, in [-100, 100])."""
    allowed_token_ids: bytes | None = None
    """u32 column of at least one id: no other token can be drawn. None: no restriction."""
    bad_words: tuple[bytes, ...] = ()
    """u32 columns, one for each token sequence that the output must not contain."""

    @property
    def is_greedy(self) -> bool:
        """Whether the draw is an argmax."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1


class StopRules(Struct, frozen=True, array_like=True, kw_only=True):
    """When a request ends."""

    max_tokens: int
    """Upper bound of output tokens, >= 1. `num_output_prefix` counts towards it."""
    min_tokens: int = 0
    """Minimum number of output tokens. Until then no stop token can be drawn."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the request, in addition to the model's EOS ids. The stop id is delivered."""
    ignore_eos: bool = False
    """Whether the ids of `EngineInfo.eos_token_ids` do not end the request. Ids in `stop_token_ids`
    still do."""


class LogprobOptions(Struct, frozen=True, array_like=True, kw_only=True):
    """Which logprobs accompany each output token, besides the token's own."""

    num_top: int = 0
    """Number of most likely tokens per position; 0 for none."""
    token_ids: bytes = b""
    """u32 column of ids whose logprobs are returned at every position."""
    mode: Literal["raw", "processed"] = "raw"
    """raw: log-softmax of the model's logits. processed: after every control of `Sampling`."""


class PromptLogprobOptions(Struct, frozen=True, array_like=True, kw_only=True):
    """Logprobs of the prompt's own tokens.

    Positions from `start` on are computed, not read from the prefix cache.
    """

    num_top: int = 0
    """Number of most likely tokens per position; 0 for none."""
    start: int = 0
    """First prompt position to score. Position 0 has no logprob."""


class Grammar(Struct, frozen=True, array_like=True, kw_only=True):
    """A constraint on the output's text. The engine compiles it."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
    text: str = ""
    start_after: bytes = b""
    """u32 column: the constraint begins after these ids were generated, such as the end of
    reasoning. Empty: it begins at once."""
    may_open_with: bytes = b""
    """u32 column, used with `start_after`: ids such as the start of reasoning. If the first output
    token is one of them, the constraint waits for `start_after`; otherwise it begins at once."""


class Adapter(Struct, frozen=True, array_like=True):
    """A LoRA adapter."""

    name: str
    """Name under which `LoadAdapter` loaded it."""
    uid: bytes
    """Digest of the adapter's bytes, not empty. It seeds the block hashes, so that cached blocks
    are shared only between requests of one adapter."""


class CacheOptions(Struct, frozen=True, array_like=True, kw_only=True):
    """How a request uses the prefix cache."""

    salt: bytes = b""
    """Requests share cached blocks only with requests of the same salt."""
    boundaries: bytes = b""
    """u32 column of prompt positions at which messages end: hints for resume points."""
    read: bool = True
    """Whether the request may use cached blocks."""
    write: bool = True
    """Whether the request's blocks may be cached for others."""
    hint: Literal["", "pin", "demote"] = ""
    """pin: the request's blocks are expected to be used again. demote: they are not."""


class GenerateRequest(Struct, frozen=True, array_like=True, kw_only=True):
    """One sequence to generate: token ids in, token ids out."""

    request_id: str
    """Unique among the engine's live requests."""
    prompt_token_ids: bytes
    """u32 column of at least one id."""
    stop: StopRules
    sampling: Sampling = Sampling()
    num_output_prefix: int = 0
    """Number of ids at the end of the prompt that are output already, after a resume or a
    migration. Penalties, seeds, limits and grammars count them as output."""
    logprobs: LogprobOptions | None = None
    prompt_logprobs: PromptLogprobOptions | None = None
    grammar: Grammar | None = None
    adapter: Adapter | None = None
    cache: CacheOptions = CacheOptions()
    priority: int = 0
    """Lower values run earlier, under policies that read priorities."""
    tenant: str = ""
    """Name of the client's tenant, for policies that share capacity between tenants."""
    session_id: str = ""
    """Name of the conversation that the request belongs to, for traces and routers."""
    deadline: float | None = None
    """`time.monotonic()` of the engine's host after which the request fails."""
    dp_rank: int | None = None
    """Data-parallel rank that must serve the request."""
    speculate: bool | None = None
    """Whether to use speculative decoding. None: the engine decides."""
    want: tuple[str, ...] = ()
    """Names of further outputs. An engine that lacks one of them rejects the request."""
    kv_transfer: bytes | None = None
    """Opaque parameters of a disaggregated prefill or decode."""
    trace_parent: str = ""
    """W3C `traceparent` of the client's request."""
    arrival: float | None = None
    """`time.monotonic()` at which the front end read the request. None: the time of its intake."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of `prompt_token_ids`, including the output prefix."""
        return num_ids(self.prompt_token_ids)
