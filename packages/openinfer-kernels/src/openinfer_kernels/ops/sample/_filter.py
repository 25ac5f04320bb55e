"""Min-p, top-k and top-p as one threshold per row.

Each of them keeps the tokens from some score on, so a row's filters amount to the highest of three
thresholds. Tokens that tie with the last one kept are kept as well. So the kept set is a function
of the scores alone, not of the order in which a sort leaves equal scores.
"""

import torch

# On a CPU, top-p sorts this many scores first. If their probability is too small, it sorts 8 times
# as many, and so on.
_CPU_PREFIX = 1024
_PREFIX_GROWTH = 8


def filter_(
    scores: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, log_min_p: torch.Tensor,
    max_top_k: int, has_top_p: bool,
) -> None:  # fmt: skip
    """Sets the scores of dropped tokens to -inf, in place.

    Args:
        scores: [n, vocab_size], float32: logits over temperature.
        top_k: [n], int64: upper bound of the tokens to keep; vocab_size means no limit.
        top_p: [n], float64: keeps the smallest set of the tokens left by min-p and top-k that
            reaches this probability; 1 keeps all.
        log_min_p: [n], float64: log of the share of the largest probability that a token must
            reach; -inf keeps all.
        max_top_k: Largest top_k below vocab_size, 0 if there is none.
        has_top_p: Whether any row's top_p is below 1.
    """
    threshold = scores.amax(dim=1) + log_min_p.to(scores.dtype)
    if max_top_k or has_top_p:
        vocab_size = scores.shape[1]
        is_limited = top_k < vocab_size
        length = min(vocab_size, _prefix_length(scores, max_top_k, has_top_p))
        ordered = scores.topk(length, dim=1).values
        last = top_k.clamp(max=length).sub_(1).unsqueeze(1)
        kth = ordered.gather(1, last).squeeze(1).masked_fill_(~is_limited, -torch.inf)
        threshold = torch.maximum(threshold, kth)
        if has_top_p:
            threshold = torch.maximum(threshold, _nucleus(scores, ordered, threshold, top_p))
    scores.masked_fill_(scores < threshold.unsqueeze(1), -torch.inf)


def _prefix_length(scores: torch.Tensor, max_top_k: int, has_top_p: bool) -> int:
    if not has_top_p:
        return max_top_k
    # On a GPU, checking whether a prefix was enough would make the host wait.
    return max(max_top_k, _CPU_PREFIX) if scores.device.type == "cpu" else scores.shape[1]


def _nucleus(
    scores: torch.Tensor, ordered: torch.Tensor, lowest: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Returns the lowest score that top-p keeps among the scores from `lowest` on: [n]."""
    kept = scores.masked_fill(scores < lowest.unsqueeze(1), -torch.inf)
    log_mass = kept.logsumexp(dim=1, keepdim=True)
    before = _mass_before(ordered, log_mass)
    while ordered.shape[1] < scores.shape[1] and bool((before[:, -1] < top_p).any()):
        length = min(scores.shape[1], ordered.shape[1] * _PREFIX_GROWTH)
        ordered = scores.topk(length, dim=1).values
        before = _mass_before(ordered, log_mass)
    num_kept = (before < top_p.unsqueeze(1)).sum(dim=1, keepdim=True)
    last = ordered.gather(1, num_kept.sub_(1).clamp_(min=0)).squeeze(1)
    # All probabilities may sum to slightly less or more than 1, so top_p = 1 is handled apart.
    return last.masked_fill_(top_p >= 1, -torch.inf)


def _mass_before(ordered: torch.Tensor, log_mass: torch.Tensor) -> torch.Tensor:
    """Returns the probability of all tokens before each one, in float64."""
    probability = (ordered - log_mass).to(torch.float64).exp_()
    return probability.cumsum(dim=1).sub_(probability)
