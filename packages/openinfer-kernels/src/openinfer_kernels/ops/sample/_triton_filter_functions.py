"""Device functions of sample that filter a row's scores without a sort, and draw; see `_triton`."""

# Kernel arguments are Triton's values, which have no Python types. What is known when a kernel is
# compiled has an `if` of its own, so that the compiler leaves out the code below it.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from openinfer_kernels.ops.sample._triton_score_functions import (
    INFINITY,
    PROCESSED,
    key_of,
    noise_of,
    scores_of,
    value_of,
)


@triton.jit
def _kth_largest(keys, k):
    """Returns the largest key that at least k of `keys` reach, by bisection over its bits."""
    found = tl.full((), 0, tl.uint32)
    for step in range(32):
        trial = found | (tl.full((), 0x80000000, tl.uint32) >> step)
        if tl.sum((keys >= trial).to(tl.int32), axis=0) >= k:
            found = trial
    return found


@triton.jit
def _nucleus(keys, weights, mass):
    """Returns the largest key so that the weights of the keys from it on reach `mass`."""
    found = tl.full((), 0, tl.uint32)
    for step in range(32):
        trial = found | (tl.full((), 0x80000000, tl.uint32) >> step)
        if tl.sum(tl.where(keys >= trial, weights, 0.0), axis=0) >= mass:
            found = trial
    return found


@triton.jit
def _list_groups(group_keys, lowest, list_ptr, GROUPS_PAD: tl.constexpr):
    """Writes the groups with a key from `lowest` on, in order, and returns their number."""
    is_listed = group_keys >= lowest
    at = tl.cumsum(is_listed.to(tl.int32), axis=0) - 1
    tl.debug_barrier()
    tl.store(list_ptr + at, tl.arange(0, GROUPS_PAD), mask=is_listed)
    tl.debug_barrier()
    return tl.sum(is_listed.to(tl.int32), axis=0)


@triton.jit
def _weigh(
    group_keys, lowest, list_ptr, largest,
    logits, counts, bias, id_mask, table, needs, has_mask,
    VOCAB_SIZE: tl.constexpr, HAS_CONTROLS: tl.constexpr, GROUP_SIZE: tl.constexpr,
    GROUPS_PAD: tl.constexpr,
    READ_GROUPS: tl.constexpr,
):  # fmt: skip
    """Returns the number of keys from `lowest` on, and the sum of their exponentials."""
    num_groups = _list_groups(group_keys, lowest, list_ptr, GROUPS_PAD)
    num = tl.zeros((READ_GROUPS, GROUP_SIZE), tl.int32)
    mass = tl.zeros((READ_GROUPS, GROUP_SIZE), tl.float32)
    begin = tl.full((), 0, tl.int32)
    while begin < num_groups:
        listed = begin + tl.arange(0, READ_GROUPS)
        group = tl.load(list_ptr + listed, mask=listed < num_groups, other=GROUPS_PAD)
        cols = group[:, None] * GROUP_SIZE + tl.arange(0, GROUP_SIZE)[None, :]
        x = scores_of(
            logits,
            counts,
            bias,
            id_mask,
            table,
            needs,
            has_mask,
            cols,
            cols < VOCAB_SIZE,
            HAS_CONTROLS,
        )
        is_in = (key_of(x) >= lowest) & (cols < VOCAB_SIZE)
        num += is_in.to(tl.int32)
        mass += tl.where(is_in, tl.exp(x - largest), 0.0)
        begin += READ_GROUPS
    return tl.sum(tl.sum(num, axis=1), axis=0), tl.sum(tl.sum(mass, axis=1), axis=0)


@triton.jit
def _scan(
    group_keys, lowest, list_ptr, largest, stream_key,
    logits, counts, bias, id_mask, table, needs, has_mask,
    VOCAB_SIZE: tl.constexpr, HAS_CONTROLS: tl.constexpr, GROUP_SIZE: tl.constexpr,
    GROUPS_PAD: tl.constexpr,
    READ_GROUPS: tl.constexpr,
):  # fmt: skip
    """Draws among the keys from `lowest` on.

    Returns the sum of their exponentials, the id with the largest perturbed score, and its key.
    """
    num_groups = _list_groups(group_keys, lowest, list_ptr, GROUPS_PAD)
    mass = tl.zeros((READ_GROUPS, GROUP_SIZE), tl.float32)
    best = tl.full((READ_GROUPS, GROUP_SIZE), -INFINITY, tl.float32)
    best_id = tl.full((READ_GROUPS, GROUP_SIZE), VOCAB_SIZE, tl.int32)
    best_key = tl.zeros((READ_GROUPS, GROUP_SIZE), tl.uint32)
    begin = tl.full((), 0, tl.int32)
    while begin < num_groups:
        listed = begin + tl.arange(0, READ_GROUPS)
        group = tl.load(list_ptr + listed, mask=listed < num_groups, other=GROUPS_PAD)
        cols = group[:, None] * GROUP_SIZE + tl.arange(0, GROUP_SIZE)[None, :]
        x = scores_of(
            logits,
            counts,
            bias,
            id_mask,
            table,
            needs,
            has_mask,
            cols,
            cols < VOCAB_SIZE,
            HAS_CONTROLS,
        )
        key = key_of(x)
        is_in = (key >= lowest) & (cols < VOCAB_SIZE)
        mass += tl.where(is_in, tl.exp(x - largest), 0.0)
        perturbed = tl.where(is_in, x + noise_of(stream_key, cols), -INFINITY)
        is_better = perturbed > best
        best = tl.where(is_better, perturbed, best)
        best_id = tl.where(is_better, cols, best_id)
        best_key = tl.where(is_better, key, best_key)
        begin += READ_GROUPS
    top = tl.max(tl.max(best, axis=1), axis=0)
    ids = tl.where(best == top, best_id, VOCAB_SIZE)
    winner = tl.min(tl.min(ids, axis=1), axis=0)
    keys = tl.where(ids == winner, best_key, 0)
    winner_key = tl.max(tl.max(keys, axis=1), axis=0)
    return tl.sum(tl.sum(mass, axis=1), axis=0), winner, winner_key


@triton.jit
def _gather(
    group_keys, lowest, list_ptr, candidate_ptr, candidate_id_ptr,
    logits, counts, bias, id_mask, table, needs, has_mask,
    VOCAB_SIZE: tl.constexpr, HAS_CONTROLS: tl.constexpr, GROUP_SIZE: tl.constexpr,
    GROUPS_PAD: tl.constexpr,
    READ_GROUPS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Gathers the scores whose keys are from `lowest` on, in the order of ids.

    At most CANDIDATES are written; the number of all is returned.
    """
    num_groups = _list_groups(group_keys, lowest, list_ptr, GROUPS_PAD)
    num = tl.full((), 0, tl.int32)
    begin = tl.full((), 0, tl.int32)
    while begin < num_groups:
        listed = begin + tl.arange(0, READ_GROUPS)
        group = tl.load(list_ptr + listed, mask=listed < num_groups, other=GROUPS_PAD)
        cols = tl.reshape(
            group[:, None] * GROUP_SIZE + tl.arange(0, GROUP_SIZE)[None, :],
            (READ_GROUPS * GROUP_SIZE,),
        )
        x = scores_of(
            logits,
            counts,
            bias,
            id_mask,
            table,
            needs,
            has_mask,
            cols,
            cols < VOCAB_SIZE,
            HAS_CONTROLS,
        )
        is_in = (key_of(x) >= lowest) & (cols < VOCAB_SIZE)
        at = num + tl.cumsum(is_in.to(tl.int32), axis=0) - 1
        has_room = is_in & (at < CANDIDATES)
        tl.store(candidate_ptr + at, x, mask=has_room)
        tl.store(candidate_id_ptr + at, cols, mask=has_room)
        num += tl.sum(is_in.to(tl.int32), axis=0)
        begin += READ_GROUPS
    tl.debug_barrier()
    return num


@triton.jit
def draw_among_few(
    group_keys, lowest, top_k, top_p, list_ptr, largest, stream_key, candidates, candidate_ids,
    logits, counts, bias, id_mask, table, needs, has_mask,
    VOCAB_SIZE: tl.constexpr, HAS_CONTROLS: tl.constexpr, GROUP_SIZE: tl.constexpr,
    GROUPS_PAD: tl.constexpr,
    READ_GROUPS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Draws in a row with a small top_k, if its candidates have room.

    Returns whether they do, the token, and the lowest score that was kept.
    """
    # The k-th largest group maximum is at most the k-th largest score, so no kept score is below
    # it.
    reach = tl.maximum(lowest, _kth_largest(group_keys, top_k))
    num = _gather(
        group_keys, reach, list_ptr, candidates, candidate_ids,
        logits, counts, bias, id_mask, table, needs, has_mask,
        VOCAB_SIZE, HAS_CONTROLS, GROUP_SIZE, GROUPS_PAD, READ_GROUPS, CANDIDATES,
    )  # fmt: skip
    token = tl.full((), 0, tl.int32)
    if num <= CANDIDATES:
        index = tl.arange(0, CANDIDATES)
        x = tl.load(candidates + index, mask=index < num, other=-INFINITY)
        ids = tl.load(candidate_ids + index, mask=index < num, other=VOCAB_SIZE)
        keys = key_of(x)
        lowest = tl.maximum(lowest, _kth_largest(keys, top_k))
        if top_p < 1:
            weights = tl.where(keys >= lowest, tl.exp(x - largest), 0.0)
            mass = top_p * tl.sum(weights, axis=0)
            lowest = tl.maximum(lowest, _nucleus(keys, weights, mass))
        is_kept = (keys >= lowest) & (index < num)
        perturbed = tl.where(is_kept, x + noise_of(stream_key, ids), -INFINITY)
        _best, winner = tl.max(
            perturbed, axis=0, return_indices=True, return_indices_tie_break_left=True
        )
        token = tl.sum(tl.where(index == winner, ids, 0), axis=0)
    return num <= CANDIDATES, token, value_of(lowest)


@triton.jit
def draw_among_many(
    group_keys, lowest, log_min_p, top_k, top_p, list_ptr, largest, stream_key, token, score, mass,
    logits, counts, bias, id_mask, table, needs, has_mask,
    VOCAB_SIZE: tl.constexpr, HAS_CONTROLS: tl.constexpr, GROUP_SIZE: tl.constexpr,
    GROUPS_PAD: tl.constexpr,
    READ_GROUPS: tl.constexpr,
):  # fmt: skip
    """Draws in any other row; returns the token and the lowest score that was kept.

    `token`, `score` and `mass` are the draw among all tokens, its score, and the mass of all
    tokens.
    """
    token_key = key_of(score)
    if top_k < VOCAB_SIZE:
        kth = tl.full((), 0, tl.uint32)
        for step in range(32):
            trial = kth | (tl.full((), 0x80000000, tl.uint32) >> step)
            num, _mass = _weigh(
                group_keys, trial, list_ptr, largest,
                logits, counts, bias, id_mask, table, needs, has_mask,
                VOCAB_SIZE, HAS_CONTROLS, GROUP_SIZE, GROUPS_PAD, READ_GROUPS,
            )  # fmt: skip
            if num >= top_k:
                kth = trial
        lowest = tl.maximum(lowest, kth)
    if (top_k < VOCAB_SIZE) | (log_min_p != -INFINITY):
        mass, token, token_key = _scan(
            group_keys, lowest, list_ptr, largest, stream_key,
            logits, counts, bias, id_mask, table, needs, has_mask,
            VOCAB_SIZE, HAS_CONTROLS, GROUP_SIZE, GROUPS_PAD, READ_GROUPS,
        )  # fmt: skip
    mass = mass * top_p
    if (top_p < 1) & ((needs & PROCESSED) != 0):
        # The request wants processed scores too, so the exact threshold is needed.
        nucleus = tl.full((), 0, tl.uint32)
        for step in range(32):
            trial = nucleus | (tl.full((), 0x80000000, tl.uint32) >> step)
            _num, reached = _weigh(
                group_keys, tl.maximum(trial, lowest), list_ptr, largest,
                logits, counts, bias, id_mask, table, needs, has_mask,
                VOCAB_SIZE, HAS_CONTROLS, GROUP_SIZE, GROUPS_PAD, READ_GROUPS,
            )  # fmt: skip
            if reached >= mass:
                nucleus = trial
        lowest = tl.maximum(lowest, nucleus)
        if token_key < lowest:
            _kept, token, token_key = _scan(
                group_keys, lowest, list_ptr, largest, stream_key,
                logits, counts, bias, id_mask, table, needs, has_mask,
                VOCAB_SIZE, HAS_CONTROLS, GROUP_SIZE, GROUPS_PAD, READ_GROUPS,
            )  # fmt: skip
    is_settled = (top_p >= 1) | ((needs & PROCESSED) != 0)
    while is_settled == 0:
        above, next_token, next_key = _scan(
            group_keys, token_key + 1, list_ptr, largest, stream_key,
            logits, counts, bias, id_mask, table, needs, has_mask,
            VOCAB_SIZE, HAS_CONTROLS, GROUP_SIZE, GROUPS_PAD, READ_GROUPS,
        )  # fmt: skip
        is_settled = above < mass
        if is_settled == 0:
            token = next_token
            token_key = next_key
    return token, value_of(lowest)
