"""The kernels of sample; `_triton` says how they work together."""

# Kernel arguments are Triton's values, which have no Python types. What is known when a kernel is
# compiled has an `if` of its own, so that the compiler leaves out the code below it.
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
    stream_key,
)


@triton.jit(do_not_specialize=["num_ids"], do_not_specialize_on_alignment=["row_ptr"])
def write_row_kernel(row_ptr, packed_ptr, num_ids, BLOCK: tl.constexpr):
    """Writes BLOCK values of one row of a table: program (tile of ids).

    `packed_ptr` is [2, num_ids]: ids, then the values' bits.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = at < num_ids
    ids = tl.load(packed_ptr + at, mask=is_inside, other=0)
    values = tl.load(packed_ptr + num_ids + at, mask=is_inside, other=0)
    tl.store(row_ptr + ids, values, mask=is_inside)


@triton.jit
def _rule_out(id_mask, ids, is_ruled_out):
    """Clears the bits of `ids` in a mask."""
    tl.atomic_and(id_mask + (ids >> 5), ~(1 << (ids & 31)), mask=is_ruled_out)


@triton.jit
def mask_kernel(
    slots, positions, table_ptr, words_ptr, recent_ptr, grammar_masks, grammar_rows, mask_ptr,
    has_mask_ptr,
    NUM_COLUMNS: tl.constexpr, NUM_STOPS: tl.constexpr, STOPS_PAD: tl.constexpr,
    NUM_WORDS: tl.constexpr, WORDS_PAD: tl.constexpr, MAX_WORD_IDS: tl.constexpr,
    MASK_WORDS: tl.constexpr, HAS_GRAMMAR: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Writes the mask of one row: program (row).

    `mask_ptr` is [rows, MASK_WORDS]: a bit for each id, set where the id is allowed. `has_mask_ptr`
    says whether the row has a mask at all; if not, its words are not written. `grammar_rows` has
    the row of `grammar_masks` for each row, -1 for none.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    position = tl.load(positions + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    id_mask = mask_ptr + row * MASK_WORDS
    has_mask = (needs & (MIN_TOKENS | BAD_WORDS)) != 0
    grammar_row = tl.full((), -1, tl.int64)
    if HAS_GRAMMAR:
        grammar_row = tl.load(grammar_rows + row)
        has_mask = has_mask | (grammar_row >= 0)
    tl.store(has_mask_ptr + row, has_mask.to(tl.int32))
    if has_mask:
        for begin in range(0, MASK_WORDS, CHUNK):
            at = begin + tl.arange(0, CHUNK)
            allowed = tl.full((CHUNK,), -1, tl.int32)
            if HAS_GRAMMAR:
                if grammar_row >= 0:
                    allowed = tl.load(
                        grammar_masks + grammar_row * MASK_WORDS + at, mask=at < MASK_WORDS, other=0
                    )
            tl.store(id_mask + at, allowed, mask=at < MASK_WORDS)
        tl.debug_barrier()
        if needs & MIN_TOKENS:
            stops = tl.arange(0, STOPS_PAD)
            is_early = position < tl.load(table + FIRST_STOP_COLUMN)
            is_stop = (stops < NUM_STOPS) & is_early
            ids = tl.load(table + STOP_IDS_COLUMN + stops, mask=is_stop, other=0)
            _rule_out(id_mask, ids.to(tl.int32), is_stop)
        if needs & BAD_WORDS:
            word = tl.arange(0, WORDS_PAD)
            words = words_ptr + slot * (NUM_WORDS * MAX_WORD_IDS) + word * MAX_WORD_IDS
            first = tl.load(table + FIRST_OUTPUT_COLUMN)
            is_next = word < NUM_WORDS
            for index in range(MAX_WORD_IDS - 1):
                ids = tl.load(words + index, mask=word < NUM_WORDS, other=NO_ID)
                at = position - (MAX_WORD_IDS - 1) + index
                recent = tl.load(
                    recent_ptr + slot * MAX_WORD_IDS + (at & (MAX_WORD_IDS - 1)),
                    mask=at >= first,
                    other=NO_ID - 1,
                )
                is_next = is_next & ((ids == recent) | (ids == NO_ID))
            last = tl.load(words + (MAX_WORD_IDS - 1), mask=word < NUM_WORDS, other=NO_ID)
            is_next = is_next & (last != NO_ID)
            _rule_out(id_mask, tl.where(is_next, last, 0), is_next)


@triton.jit
def block_kernel(
    logits_ptr, stride, slots, positions, table_ptr, counts_ptr, bias_ptr, mask_ptr, has_mask_ptr,
    best_ptr, best_id_ptr, best_score_ptr, max_ptr, sum_ptr, group_max_ptr,
    finished_ptr, recent_ptr, last_token_ptr, packed_ptr, threshold_ptr,
    VOCAB_SIZE: tl.constexpr, NUM_COLUMNS: tl.constexpr, MASK_WORDS: tl.constexpr,
    MAX_WORD_IDS: tl.constexpr,
    HAS_CONTROLS: tl.constexpr, HAS_FILTERS: tl.constexpr, NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS_PAD: tl.constexpr, GROUP_SIZE: tl.constexpr,
    GROUPS_PAD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Computes one block of a row's scores: program (row, block).

    Writes the largest score of the block, and its best perturbed score with its id. For rows with
    filters it also writes the sum of exponentials, the score of that id, and the largest score of
    each group. If no row of the step filters, the row's last program merges the blocks and writes
    the result; otherwise `row_kernel` does. Per-block tensors are [rows, BLOCKS_PAD],
    `group_max_ptr` is [rows, GROUPS_PAD].
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(slots + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    has_mask = tl.full((), 0, tl.int32)
    if HAS_CONTROLS:
        has_mask = tl.load(has_mask_ptr + row)
    cols = block * BLOCK + tl.arange(0, BLOCK)
    x = scores_of(
        logits_ptr + row * stride, counts_ptr + slot * VOCAB_SIZE, bias_ptr + slot * VOCAB_SIZE,
        mask_ptr + row * MASK_WORDS, table, needs, has_mask, cols, cols < VOCAB_SIZE, HAS_CONTROLS,
    )  # fmt: skip
    # The largest score says whether a row is bad. NaN becomes +inf, which fails the row as well.
    x = tl.where(x == x, x, INFINITY)
    largest = tl.max(x, axis=0)
    at = row * BLOCKS_PAD + block
    tl.store(max_ptr + at, largest)
    is_drawn = True
    if HAS_FILTERS:
        if needs & FILTER:
            safe = tl.where(tl.abs(largest) == INFINITY, 0.0, largest)
            tl.store(sum_ptr + at, tl.sum(tl.exp(x - safe), axis=0))
            groups = tl.max(tl.reshape(x, (BLOCK // GROUP_SIZE, GROUP_SIZE)), axis=1)
            group = block * (BLOCK // GROUP_SIZE) + tl.arange(0, BLOCK // GROUP_SIZE)
            tl.store(group_max_ptr + row * GROUPS_PAD + group, groups)
            # With top_k or min_p, `row_kernel` draws.
            top_k = tl.load(table + TOP_K_COLUMN)
            is_drawn = (top_k >= VOCAB_SIZE) & (float_at(table, MIN_P_COLUMN) == -INFINITY)
    if is_drawn:
        perturbed = x
        if needs & NOISE:
            perturbed = x + noise_of(stream_key(table, tl.load(positions + row)), cols)
        best, index = tl.max(
            perturbed, axis=0, return_indices=True, return_indices_tie_break_left=True
        )
        tl.store(best_ptr + at, best)
        tl.store(best_id_ptr + at, block * BLOCK + index)
        if HAS_FILTERS:
            score = tl.sum(tl.where(cols == block * BLOCK + index, x, 0.0), axis=0)
            tl.store(best_score_ptr + at, score)
    if not HAS_FILTERS:
        # The row's last program merges its blocks.
        tl.debug_barrier()
        num_finished = tl.atomic_add(finished_ptr + row, 1, sem="acq_rel")
        if num_finished == NUM_BLOCKS - 1:
            token, _winner, _maxima, _largest, failure = _merge_blocks(
                row, best_ptr, best_id_ptr, max_ptr, NUM_BLOCKS, BLOCKS_PAD
            )
            _write_result(
                token, failure, -INFINITY, row, slot, positions, needs,
                counts_ptr, recent_ptr, last_token_ptr, packed_ptr, threshold_ptr,
                VOCAB_SIZE, MAX_WORD_IDS,
            )  # fmt: skip
            tl.store(finished_ptr + row, 0)


@triton.jit
def _merge_blocks(
    row, best_ptr, best_id_ptr, max_ptr, NUM_BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr
):  # fmt: skip
    """Merges the blocks of a row.

    Returns the best token, its block, all blocks' largest scores, the largest of them, and the
    row's `Failure`. The loads bypass the L1 cache: other programs of this kernel may have written
    the values.
    """
    block = tl.arange(0, BLOCKS_PAD)
    at = row * BLOCKS_PAD + block
    is_block = block < NUM_BLOCKS
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
def _write_result(
    token, failure, threshold, row, slot, positions, needs,
    counts_ptr, recent_ptr, last_token_ptr, packed_ptr, threshold_ptr,
    VOCAB_SIZE: tl.constexpr, MAX_WORD_IDS: tl.constexpr,
):  # fmt: skip
    """Writes a row's token: for the host, and into the tables for the steps after this one."""
    token = tl.minimum(token, VOCAB_SIZE - 1)
    tl.store(packed_ptr + row, token)
    tl.store(packed_ptr + tl.num_programs(0) + row, failure)
    tl.store(last_token_ptr + slot, token.to(tl.int64))
    tl.store(threshold_ptr + row, threshold)
    if needs & PENALTIES:
        tl.atomic_add(counts_ptr + slot * VOCAB_SIZE + token, 1)
    if needs & BAD_WORDS:
        position = tl.load(positions + row)
        tl.store(recent_ptr + slot * MAX_WORD_IDS + (position & (MAX_WORD_IDS - 1)), token)


@triton.jit
def row_kernel(
    logits_ptr, stride, slots, positions, table_ptr, counts_ptr, bias_ptr, mask_ptr, has_mask_ptr,
    best_ptr, best_id_ptr, best_score_ptr, max_ptr, sum_ptr, group_max_ptr,
    list_ptr, candidate_ptr, candidate_id_ptr,
    recent_ptr, last_token_ptr, packed_ptr, threshold_ptr,
    VOCAB_SIZE: tl.constexpr, NUM_COLUMNS: tl.constexpr, MASK_WORDS: tl.constexpr,
    MAX_WORD_IDS: tl.constexpr,
    HAS_CONTROLS: tl.constexpr,
    NUM_BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, GROUP_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr, GROUPS_PAD: tl.constexpr,
    SMALL_K: tl.constexpr, READ_GROUPS: tl.constexpr, CANDIDATES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Draws the token of one row from its blocks, with filters if the row has them: program (row).

    `list_ptr` is [rows, GROUPS_PAD]; `candidate_ptr` and `candidate_id_ptr` are [rows, CANDIDATES].
    """
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    token, winner, maxima, largest, failure = _merge_blocks(
        row, best_ptr, best_id_ptr, max_ptr, NUM_BLOCKS, BLOCKS_PAD
    )
    threshold = tl.full((), -INFINITY, tl.float32)
    if ((needs & FILTER) != 0) & (failure == NO_FAILURE):
        has_mask = tl.full((), 0, tl.int32)
        if HAS_CONTROLS:
            has_mask = tl.load(has_mask_ptr + row)
        logits = logits_ptr + row * stride
        counts = counts_ptr + slot * VOCAB_SIZE
        bias = bias_ptr + slot * VOCAB_SIZE
        id_mask = mask_ptr + row * MASK_WORDS
        row_stream_key = stream_key(table, tl.load(positions + row))
        lists = list_ptr + row * GROUPS_PAD
        group = tl.arange(0, GROUPS_PAD)
        group_max = tl.load(
            group_max_ptr + row * GROUPS_PAD + group, mask=group < NUM_GROUPS, other=-INFINITY
        )
        group_keys = key_of(group_max)
        top_k = tl.load(table + TOP_K_COLUMN).to(tl.int32)
        top_p = float_at(table, TOP_P_COLUMN)
        log_min_p = float_at(table, MIN_P_COLUMN)
        lowest = key_of(largest + log_min_p)
        is_drawn = False
        if top_k <= SMALL_K:
            is_drawn, token, threshold = draw_among_few(
                group_keys, lowest, top_k, top_p, lists, largest, row_stream_key,
                candidate_ptr + row * CANDIDATES, candidate_id_ptr + row * CANDIDATES,
                logits, counts, bias, id_mask, table, needs, has_mask,
                VOCAB_SIZE, HAS_CONTROLS, GROUP_SIZE, GROUPS_PAD, READ_GROUPS, CANDIDATES,
            )  # fmt: skip
        if is_drawn == 0:
            block = tl.arange(0, BLOCKS_PAD)
            at = row * BLOCKS_PAD + block
            is_block = block < NUM_BLOCKS
            sums = tl.load(sum_ptr + at, mask=is_block, other=0.0)
            scores = tl.load(best_score_ptr + at, mask=is_block, other=0.0)
            score = tl.sum(tl.where(block == winner, scores, 0.0), axis=0)
            token, threshold = draw_among_many(
                group_keys, lowest, log_min_p, top_k, top_p, lists, largest, row_stream_key,
                token, score, tl.sum(sums * tl.exp(maxima - largest), axis=0),
                logits, counts, bias, id_mask, table, needs, has_mask,
                VOCAB_SIZE, HAS_CONTROLS, GROUP_SIZE, GROUPS_PAD, READ_GROUPS,
            )  # fmt: skip
    _write_result(
        token, failure, threshold, row, slot, positions, needs,
        counts_ptr, recent_ptr, last_token_ptr, packed_ptr, threshold_ptr, VOCAB_SIZE, MAX_WORD_IDS,
    )  # fmt: skip


@triton.jit
def process_kernel(
    rows, logits_ptr, stride, slots, table_ptr, counts_ptr, bias_ptr, mask_ptr, has_mask_ptr,
    packed_ptr, threshold_ptr, processed_ptr,
    VOCAB_SIZE: tl.constexpr, NUM_COLUMNS: tl.constexpr, MASK_WORDS: tl.constexpr,
    HAS_CONTROLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes one block of processed scores: program (entry, block).

    Entry i is for row `rows[i]` of the draw. `processed_ptr` is [entries, VOCAB_SIZE], float32:
    the scores from which the row's token was drawn, -inf below the row's threshold.
    """
    entry = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + entry)
    slot = tl.load(slots + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    has_mask = tl.full((), 0, tl.int32)
    if HAS_CONTROLS:
        has_mask = tl.load(has_mask_ptr + row)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = scores_of(
        logits_ptr + row * stride, counts_ptr + slot * VOCAB_SIZE, bias_ptr + slot * VOCAB_SIZE,
        mask_ptr + row * MASK_WORDS, table, needs, has_mask, cols, cols < VOCAB_SIZE, HAS_CONTROLS,
        drawn=tl.load(packed_ptr + row),
    )  # fmt: skip
    x = tl.where(x >= tl.load(threshold_ptr + row), x, -INFINITY)
    tl.store(processed_ptr + entry * VOCAB_SIZE + cols, x, mask=cols < VOCAB_SIZE)
