"""The kernels of sample, see `_triton` for how they work together."""

# Kernel arguments are Triton's values, which have no Python types. What is known when a kernel is
# compiled stands in an `if` of its own, so that the code below it is left out.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, SIM102

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from openinfer_kernels.ops.sample._triton_filter_functions import (
    draw_among_few,
    draw_among_many,
)
from openinfer_kernels.ops.sample._triton_score_functions import (
    BAD_WORDS,
    FILTER,
    FIRST_OUTPUT_COLUMN,
    FIRST_STOP_COLUMN,
    INFINITY,
    MIN_P_COLUMN,
    MIN_TOKENS,
    NEEDS_COLUMN,
    NO_FAILURE,
    NO_ID,
    NOISE,
    NOT_FINITE,
    NOTHING_LEFT,
    PENALTIES,
    STOP_IDS_COLUMN,
    TOP_K_COLUMN,
    TOP_P_COLUMN,
    float_at,
    key_of,
    noise_of,
    scores_of,
    stream_of,
)


@triton.jit(do_not_specialize=["num_ids"], do_not_specialize_on_alignment=["row_ptr"])
def enter_kernel(row_ptr, packed_ptr, num_ids, BLOCK: tl.constexpr):
    """Numbers of one row of a table: `packed_ptr` has ids, then what goes there."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = at < num_ids
    ids = tl.load(packed_ptr + at, mask=is_inside, other=0)
    values = tl.load(packed_ptr + num_ids + at, mask=is_inside, other=0)
    tl.store(row_ptr + ids, values, mask=is_inside)


@triton.jit
def _ban(bans, ids, is_banned):
    tl.atomic_and(bans + (ids >> 5), ~(1 << (ids & 31)), mask=is_banned)


@triton.jit
def ban_kernel(
    slots, positions, table_ptr, words_ptr, recent_ptr, masks, mask_rows, bans_ptr, is_banned_ptr,
    NUM_COLUMNS: tl.constexpr, NUM_STOPS: tl.constexpr, STOPS: tl.constexpr,
    NUM_WORDS: tl.constexpr, WORDS: tl.constexpr, LENGTH: tl.constexpr,
    WIDTH: tl.constexpr, HAS_MASKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """A row's bit per id, set where the id is allowed."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    position = tl.load(positions + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    bans = bans_ptr + row * WIDTH
    is_banned = (needs & (MIN_TOKENS | BAD_WORDS)) != 0
    mask_row = tl.full((), -1, tl.int64)
    if HAS_MASKS:
        mask_row = tl.load(mask_rows + row)
        is_banned = is_banned | (mask_row >= 0)
    tl.store(is_banned_ptr + row, is_banned.to(tl.int32))
    if is_banned:
        for begin in range(0, WIDTH, CHUNK):
            at = begin + tl.arange(0, CHUNK)
            allowed = tl.full((CHUNK,), -1, tl.int32)
            if HAS_MASKS:
                if mask_row >= 0:
                    allowed = tl.load(masks + mask_row * WIDTH + at, mask=at < WIDTH, other=0)
            tl.store(bans + at, allowed, mask=at < WIDTH)
        tl.debug_barrier()
        if needs & MIN_TOKENS:
            stops = tl.arange(0, STOPS)
            is_early = position < tl.load(table + FIRST_STOP_COLUMN)
            is_stop = (stops < NUM_STOPS) & is_early
            ids = tl.load(table + STOP_IDS_COLUMN + stops, mask=is_stop, other=0)
            _ban(bans, ids.to(tl.int32), is_stop)
        if needs & BAD_WORDS:
            word = tl.arange(0, WORDS)
            words = words_ptr + slot * (NUM_WORDS * LENGTH) + word * LENGTH
            first = tl.load(table + FIRST_OUTPUT_COLUMN)
            is_next = word < NUM_WORDS
            for index in range(LENGTH - 1):
                ids = tl.load(words + index, mask=word < NUM_WORDS, other=NO_ID)
                at = position - (LENGTH - 1) + index
                recent = tl.load(
                    recent_ptr + slot * LENGTH + (at & (LENGTH - 1)),
                    mask=at >= first,
                    other=NO_ID - 1,
                )
                is_next = is_next & ((ids == recent) | (ids == NO_ID))
            last = tl.load(words + (LENGTH - 1), mask=word < NUM_WORDS, other=NO_ID)
            is_next = is_next & (last != NO_ID)
            _ban(bans, tl.where(is_next, last, 0), is_next)


@triton.jit
def block_kernel(
    logits_ptr, stride, slots, positions, table_ptr, counts_ptr, bias_ptr, bans_ptr, is_banned_ptr,
    best_ptr, best_id_ptr, best_score_ptr, max_ptr, sum_ptr, group_max_ptr,
    arrived_ptr, recent_ptr, last_token_ptr, packed_ptr, threshold_ptr,
    VOCAB: tl.constexpr, NUM_COLUMNS: tl.constexpr, WIDTH: tl.constexpr, LENGTH: tl.constexpr,
    CONTROLS: tl.constexpr, FILTERS: tl.constexpr, NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """What a row needs to know of one block of its scores; without filters, the draw as well."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(slots + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    is_banned = tl.full((), 0, tl.int32)
    if CONTROLS:
        is_banned = tl.load(is_banned_ptr + row)
    cols = block * BLOCK + tl.arange(0, BLOCK)
    x = scores_of(
        logits_ptr + row * stride, counts_ptr + slot * VOCAB, bias_ptr + slot * VOCAB,
        bans_ptr + row * WIDTH, table, needs, is_banned, cols, cols < VOCAB, CONTROLS,
    )  # fmt: skip
    # The largest score tells of a bad row: NaN is made +inf, which fails it likewise.
    x = tl.where(x == x, x, INFINITY)
    largest = tl.max(x, axis=0)
    at = row * BLOCKS + block
    tl.store(max_ptr + at, largest)
    is_drawn = True
    if FILTERS:
        if needs & FILTER:
            safe = tl.where(tl.abs(largest) == INFINITY, 0.0, largest)
            tl.store(sum_ptr + at, tl.sum(tl.exp(x - safe), axis=0))
            groups = tl.max(tl.reshape(x, (BLOCK // GROUP, GROUP)), axis=1)
            group = block * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
            tl.store(group_max_ptr + row * GROUPS + group, groups)
            # With any other filter the row's own program draws.
            top_k = tl.load(table + TOP_K_COLUMN)
            is_drawn = (top_k >= VOCAB) & (float_at(table, MIN_P_COLUMN) == -INFINITY)
    if is_drawn:
        perturbed = x
        if needs & NOISE:
            perturbed = x + noise_of(stream_of(table, tl.load(positions + row)), cols)
        best, index = tl.max(
            perturbed, axis=0, return_indices=True, return_indices_tie_break_left=True
        )
        tl.store(best_ptr + at, best)
        tl.store(best_id_ptr + at, block * BLOCK + index)
        if FILTERS:
            score = tl.sum(tl.where(cols == block * BLOCK + index, x, 0.0), axis=0)
            tl.store(best_score_ptr + at, score)
    if not FILTERS:
        # The program of a row that is done last draws.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrived_ptr + row, 1, sem="acq_rel")
        if arrived == NUM_BLOCKS - 1:
            token, _winner, _maxima, _largest, failure = _merge(
                row, best_ptr, best_id_ptr, max_ptr, NUM_BLOCKS, BLOCKS
            )
            _enter(
                token, failure, -INFINITY, row, slot, positions, needs,
                counts_ptr, recent_ptr, last_token_ptr, packed_ptr, threshold_ptr,
                VOCAB, LENGTH,
            )  # fmt: skip
            tl.store(arrived_ptr + row, 0)


@triton.jit
def _merge(
    row, best_ptr, best_id_ptr, max_ptr, NUM_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """The best token of all blocks, its block, all maxima and the largest, and why it fails."""
    block = tl.arange(0, BLOCKS)
    at = row * BLOCKS + block
    is_block = block < NUM_BLOCKS
    # Past the first cache: other programs of this kernel may have written them.
    maxima = tl.load(max_ptr + at, mask=is_block, other=-INFINITY, cache_modifier=".cg")
    best = tl.load(best_ptr + at, mask=is_block, other=-INFINITY, cache_modifier=".cg")
    ids = tl.load(best_id_ptr + at, mask=is_block, other=0, cache_modifier=".cg")
    largest = tl.max(maxima, axis=0)
    failure = tl.where(largest == INFINITY, NOT_FINITE, NO_FAILURE)
    failure = tl.where(largest == -INFINITY, NOTHING_LEFT, failure)
    _best, winner = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.sum(tl.where(block == winner, ids, 0), axis=0)
    return token, winner, maxima, largest, failure


@triton.jit
def _enter(
    token, failure, threshold, row, slot, positions, needs,
    counts_ptr, recent_ptr, last_token_ptr, packed_ptr, threshold_ptr,
    VOCAB: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """What a row has come to: for the host, and in the tables for the steps that follow."""
    token = tl.minimum(token, VOCAB - 1)
    tl.store(packed_ptr + row, token)
    tl.store(packed_ptr + tl.num_programs(0) + row, failure)
    tl.store(last_token_ptr + slot, token.to(tl.int64))
    tl.store(threshold_ptr + row, threshold)
    if needs & PENALTIES:
        tl.atomic_add(counts_ptr + slot * VOCAB + token, 1)
    if needs & BAD_WORDS:
        position = tl.load(positions + row)
        tl.store(recent_ptr + slot * LENGTH + (position & (LENGTH - 1)), token)


@triton.jit
def row_kernel(
    logits_ptr, stride, slots, positions, table_ptr, counts_ptr, bias_ptr, bans_ptr, is_banned_ptr,
    best_ptr, best_id_ptr, best_score_ptr, max_ptr, sum_ptr, group_max_ptr,
    list_ptr, candidate_ptr, candidate_id_ptr,
    recent_ptr, last_token_ptr, packed_ptr, threshold_ptr,
    VOCAB: tl.constexpr, NUM_COLUMNS: tl.constexpr, WIDTH: tl.constexpr, LENGTH: tl.constexpr,
    CONTROLS: tl.constexpr,
    NUM_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr,
    NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    SMALL_K: tl.constexpr, LISTED: tl.constexpr, CANDIDATES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Draws a row's token from what is known of its blocks, filters where the row asks for it."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    token, winner, maxima, largest, failure = _merge(
        row, best_ptr, best_id_ptr, max_ptr, NUM_BLOCKS, BLOCKS
    )
    threshold = tl.full((), -INFINITY, tl.float32)
    if ((needs & FILTER) != 0) & (failure == NO_FAILURE):
        is_banned = tl.full((), 0, tl.int32)
        if CONTROLS:
            is_banned = tl.load(is_banned_ptr + row)
        logits = logits_ptr + row * stride
        counts = counts_ptr + slot * VOCAB
        bias = bias_ptr + slot * VOCAB
        bans = bans_ptr + row * WIDTH
        stream = stream_of(table, tl.load(positions + row))
        lists = list_ptr + row * GROUPS
        group = tl.arange(0, GROUPS)
        group_max = tl.load(
            group_max_ptr + row * GROUPS + group, mask=group < NUM_GROUPS, other=-INFINITY
        )
        group_keys = key_of(group_max)
        top_k = tl.load(table + TOP_K_COLUMN).to(tl.int32)
        top_p = float_at(table, TOP_P_COLUMN)
        log_min_p = float_at(table, MIN_P_COLUMN)
        lowest = key_of(largest + log_min_p)
        is_drawn = False
        if top_k <= SMALL_K:
            is_drawn, token, threshold = draw_among_few(
                group_keys, lowest, top_k, top_p, lists, largest, stream,
                candidate_ptr + row * CANDIDATES, candidate_id_ptr + row * CANDIDATES,
                logits, counts, bias, bans, table, needs, is_banned,
                VOCAB, CONTROLS, GROUP, GROUPS, LISTED, CANDIDATES,
            )  # fmt: skip
        if is_drawn == 0:
            block = tl.arange(0, BLOCKS)
            at = row * BLOCKS + block
            is_block = block < NUM_BLOCKS
            sums = tl.load(sum_ptr + at, mask=is_block, other=0.0)
            scores = tl.load(best_score_ptr + at, mask=is_block, other=0.0)
            score = tl.sum(tl.where(block == winner, scores, 0.0), axis=0)
            token, threshold = draw_among_many(
                group_keys, lowest, log_min_p, top_k, top_p, lists, largest, stream,
                token, score, tl.sum(sums * tl.exp(maxima - largest), axis=0),
                logits, counts, bias, bans, table, needs, is_banned,
                VOCAB, CONTROLS, GROUP, GROUPS, LISTED,
            )  # fmt: skip
    _enter(
        token, failure, threshold, row, slot, positions, needs,
        counts_ptr, recent_ptr, last_token_ptr, packed_ptr, threshold_ptr, VOCAB, LENGTH,
    )  # fmt: skip


@triton.jit
def process_kernel(
    rows, logits_ptr, stride, slots, table_ptr, counts_ptr, bias_ptr, bans_ptr, is_banned_ptr,
    packed_ptr, threshold_ptr, processed_ptr,
    VOCAB: tl.constexpr, NUM_COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    CONTROLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes one block of the scores after every control that a row's token was drawn from.

    Entry i of the grid is about row `rows[i]` of the draw.
    """
    entry = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + entry)
    slot = tl.load(slots + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    is_banned = tl.full((), 0, tl.int32)
    if CONTROLS:
        is_banned = tl.load(is_banned_ptr + row)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = scores_of(
        logits_ptr + row * stride, counts_ptr + slot * VOCAB, bias_ptr + slot * VOCAB,
        bans_ptr + row * WIDTH, table, needs, is_banned, cols, cols < VOCAB, CONTROLS,
        drawn=tl.load(packed_ptr + row),
    )  # fmt: skip
    x = tl.where(x >= tl.load(threshold_ptr + row), x, -INFINITY)
    tl.store(processed_ptr + entry * VOCAB + cols, x, mask=cols < VOCAB)
