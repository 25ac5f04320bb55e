"""What a client asks of an engine: one `GenerateRequest`, whole, honoured or rejected.

Every struct here is frozen, travels as an array and grows only at its end, with defaults: old and
new sides that share a contract version understand each other. Stop strings, chat templates, `n`
and user-facing parameter names live above the contract and lower to it.
"""

from typing import Literal

from msgspec import Struct

from openinfer_contract._columns import num_ids

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy: the argmax, no randomness."""


class Sampling(Struct, frozen=True, array_like=True, kw_only=True):
    """How a token is drawn from the logits of one position.

    The order of operations is allowed ids, stop ids before min_tokens, bad words and logit_bias;
    repetition, frequency and presence penalty; temperature; min_p; top_k; top_p of what both left;
    draw. Filters keep tokens that tie with the last one kept. `None` switches a control off.
    """

    temperature: float = 1.0
    """0 (or anything under `GREEDY_TEMPERATURE`) takes the argmax."""
    top_k: int | None = None
    """Keep the k largest logits, k >= 1."""
    top_p: float = 1.0
    """Of what min_p and top_k left, keep the smallest set whose probability reaches this, in
    (0, 1]."""
    min_p: float = 0.0
    """Drop tokens below this share of the largest probability, in [0, 1]."""
    seed: int | None = None
    """Counter-based: draws depend on (seed, position) alone. None: the engine picks one."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of ids in the prompt or the output;
    in (0, 100]."""
    presence_penalty: float = 0.0
    """Taken off the logits of ids in the output, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Taken off the logits of ids in the output, times how often they are there; in [-2, 2]."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(id, what is added to its logit, in [-100, 100])."""
    allowed_token_ids: bytes | None = None
    """u32 column of at least one id; when given, no other token can be drawn."""
    bad_words: tuple[bytes, ...] = ()
    """u32 columns of token sequences that the output must not complete."""

    @property
    def is_greedy(self) -> bool:
        """Whether the draw is an argmax."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1


class StopRules(Struct, frozen=True, array_like=True, kw_only=True):
    """When a request ends by itself."""

    max_tokens: int
    """Output tokens at most, >= 1; tokens counted by `num_output_prefix` included."""
    min_tokens: int = 0
    """Until this many output tokens no stop token id can be drawn."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the request; the id itself is delivered. EOS ids belong here."""
    ignore_eos: bool = False
    """Lets the ids of `EngineInfo.eos_token_ids` pass; explicit `stop_token_ids` still stop."""


class LogprobOptions(Struct, frozen=True, array_like=True, kw_only=True):
    """Which logprobs accompany each output token, besides that of the token itself."""

    num_top: int = 0
    """The most likely tokens, 0 for none."""
    token_ids: bytes = b""
    """u32 column of ids whose logprobs are wanted at every position."""
    mode: Literal["raw", "processed"] = "raw"
    """raw: log-softmax of the model's logits. processed: after every control of `Sampling`."""


class PromptLogprobOptions(Struct, frozen=True, array_like=True, kw_only=True):
    """Logprobs of the prompt's own tokens; switches prefix-cache reads off from `start` on."""

    num_top: int = 0
    start: int = 0
    """First prompt position of interest; position 0 has no logprob."""


class Grammar(Struct, frozen=True, array_like=True, kw_only=True):
    """A constraint on the output text, compiled by the engine."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
    text: str = ""
    start_after: bytes = b""
    """u32 column; the constraint starts once these ids were generated (end of reasoning)."""
    may_open_with: bytes = b""
    """u32 column; where `start_after` is given: the output may begin with one of these ids (start
    of reasoning), and only then is `start_after` waited for."""


class Adapter(Struct, frozen=True, array_like=True):
    """A LoRA adapter by name and by the digest of its bytes, which seeds the block hash."""

    name: str
    uid: bytes


class CacheOptions(Struct, frozen=True, array_like=True, kw_only=True):
    """How a request uses the prefix cache."""

    salt: bytes = b""
    """Requests share cached blocks only with requests of the same salt."""
    boundaries: bytes = b""
    """u32 column of prompt positions where messages end: hints for resume points."""
    read: bool = True
    write: bool = True
    hint: Literal["", "pin", "demote"] = ""


class GenerateRequest(Struct, frozen=True, array_like=True, kw_only=True):
    """One sequence to generate. Ids in, ids out."""

    request_id: str
    """Unique among the engine's live requests."""
    prompt_token_ids: bytes
    """u32 column, at least one id."""
    stop: StopRules
    sampling: Sampling = Sampling()
    num_output_prefix: int = 0
    """Trailing ids of the prompt that are output already (resume, migration): penalties, seeds,
    limits and grammars count them."""
    logprobs: LogprobOptions | None = None
    prompt_logprobs: PromptLogprobOptions | None = None
    grammar: Grammar | None = None
    adapter: Adapter | None = None
    cache: CacheOptions = CacheOptions()
    priority: int = 0
    """Lower runs earlier, under policies that look at it."""
    tenant: str = ""
    session_id: str = ""
    deadline: float | None = None
    """`time.monotonic()` seconds of the engine's host after which the request is given up."""
    dp_rank: int | None = None
    speculate: bool | None = None
    want: tuple[str, ...] = ()
    """Further outputs by name; an engine that lacks one rejects the request."""
    kv_transfer: bytes | None = None
    """Opaque parameters of a disaggregated prefill or decode."""
    trace_parent: str = ""
    arrival: float | None = None
    """`time.monotonic()` seconds at which the client's request was read; None: at intake."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of `prompt_token_ids`, output prefix included."""
        return num_ids(self.prompt_token_ids)
