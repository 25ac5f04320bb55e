"""The kernels of sample, see `_triton` for how they work together."""

# Kernel arguments are Triton's values, which have no Python types. What is known when a kernel is
# compiled stands in an `if` of its own, so that the code below it is left out.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, SIM102

import triton
import triton.language as tl

from openinfer_kernels.sample import IN_PROMPT, PADDING, Column, Needs
from openinfer_kernels.sample._random import GAMMA, MULTIPLIERS

NOISE = tl.constexpr(Needs.NOISE)
FILTER = tl.constexpr(Needs.FILTER)
MIN_TOKENS = tl.constexpr(Needs.MIN_TOKENS)
BIAS = tl.constexpr(Needs.BIAS)
PENALTIES = tl.constexpr(Needs.PENALTIES)
BAD_WORDS = tl.constexpr(Needs.BAD_WORDS)
PROCESSED = tl.constexpr(Needs.PROCESSED)
NEEDS_COLUMN = tl.constexpr(int(Column.NEEDS))
SEED_COLUMN = tl.constexpr(int(Column.SEED))
FIRST_OUTPUT_COLUMN = tl.constexpr(int(Column.FIRST_OUTPUT_POSITION))
FIRST_STOP_COLUMN = tl.constexpr(int(Column.FIRST_STOP_POSITION))
TOP_K_COLUMN = tl.constexpr(int(Column.TOP_K))
SCALE_COLUMN = tl.constexpr(int(Column.INVERSE_TEMPERATURE))
TOP_P_COLUMN = tl.constexpr(int(Column.TOP_P))
MIN_P_COLUMN = tl.constexpr(int(Column.LOG_MIN_P))
REPETITION_COLUMN = tl.constexpr(int(Column.REPETITION_PENALTY))
PRESENCE_COLUMN = tl.constexpr(int(Column.PRESENCE_PENALTY))
FREQUENCY_COLUMN = tl.constexpr(int(Column.FREQUENCY_PENALTY))
STOP_IDS_COLUMN = tl.constexpr(int(Column.STOP_IDS))
COUNT_BITS = tl.constexpr(IN_PROMPT - 1)
NO_ID = tl.constexpr(PADDING)
GAMMA_WORD = tl.constexpr(GAMMA)
MULTIPLIER_1 = tl.constexpr(MULTIPLIERS[0])
MULTIPLIER_2 = tl.constexpr(MULTIPLIERS[1])
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _float(table, column):
    """A column that holds a float, of one row."""
    return tl.load(table + column).to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit
def _key(x):
    """Unsigned integers in the order of the floats; equal floats have equal ones."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _value(key):
    """The float of a `_key`."""
    ordered = (key ^ 0x80000000).to(tl.int32, bitcast=True)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _mix(word):
    word = (word ^ (word >> 30)) * MULTIPLIER_1
    word = (word ^ (word >> 27)) * MULTIPLIER_2
    return word ^ (word >> 31)


@triton.jit
def _stream(table, position):
    """The key of a row's random numbers, see `_random.row_keys`."""
    seed = tl.load(table + SEED_COLUMN).to(tl.uint64, bitcast=True)
    return _mix(_mix(seed + GAMMA_WORD) + position.to(tl.uint64))


if triton.knobs.runtime.interpret:

    @triton.jit
    def _log(x):
        return tl.log(x)

else:

    @triton.jit
    def _log(x):
        """Within 3e-7 of the logarithm, where the library's costs ten times as much."""
        log2 = tl.inline_asm_elementwise(
            "lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
        return log2 * 0.6931471805599453


@triton.jit
def _noise(stream, ids):
    """Gumbel noise of token ids, see `_random.gumbel_noise`."""
    pair = (ids >> 1).to(tl.uint64) + 1
    word = _mix(stream + pair * GAMMA_WORD)
    half = (word >> ((ids & 1) * 32).to(tl.uint64)).to(tl.uint32) & 0x7FFFFFFF
    u = half.to(tl.int32).to(tl.float32) * 4.656612873077393e-10  # 2 ** -31
    u = tl.minimum(tl.maximum(u, 2.3283064365386963e-10), 0.9999999403953552)
    # -log1p(-u): the series where a logarithm of something near 1 would lose the digits.
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    exponential = tl.where(u < 0.0625, series, -_log(1 - u))
    return -_log(exponential)


@triton.jit
def _scores(
    logits, counts, bias, bans, table, needs, is_banned, cols, is_inside, CONTROLS: tl.constexpr
):
    """Scores of `cols` before the filters; -inf outside the vocabulary.

    `logits` and `bans` point at the row, `counts`, `bias` and `table` at its slot.
    """
    x = tl.load(logits + cols, mask=is_inside, other=-INFINITY).to(tl.float32)
    if CONTROLS:
        if needs & BIAS:
            x += tl.load(bias + cols, mask=is_inside, other=0.0)
        if needs & PENALTIES:
            seen = tl.load(counts + cols, mask=is_inside, other=0)
            num_output = seen & COUNT_BITS
            repetition = _float(table, REPETITION_COLUMN)
            repeated = tl.where(x > 0, x / repetition, x * repetition)
            x = tl.where(seen != 0, repeated, x)
            x -= _float(table, FREQUENCY_COLUMN) * num_output.to(tl.float32)
            x -= tl.where(num_output > 0, _float(table, PRESENCE_COLUMN), 0.0)
        if is_banned:
            words = tl.load(bans + (cols >> 5), mask=is_inside, other=0)
            x = tl.where(((words >> (cols & 31)) & 1) != 0, x, -INFINITY)
    return x * _float(table, SCALE_COLUMN)


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
    VOCAB: tl.constexpr, NUM_COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    CONTROLS: tl.constexpr, FILTERS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """What a row needs to know of one block of its scores."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(slots + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    is_banned = tl.full((), 0, tl.int32)
    if CONTROLS:
        is_banned = tl.load(is_banned_ptr + row)
    cols = block * BLOCK + tl.arange(0, BLOCK)
    x = _scores(
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
            is_drawn = (top_k >= VOCAB) & (_float(table, MIN_P_COLUMN) == -INFINITY)
    if is_drawn:
        perturbed = x
        if needs & NOISE:
            perturbed = x + _noise(_stream(table, tl.load(positions + row)), cols)
        best, index = tl.max(
            perturbed, axis=0, return_indices=True, return_indices_tie_break_left=True
        )
        tl.store(best_ptr + at, best)
        tl.store(best_id_ptr + at, block * BLOCK + index)
        score = tl.sum(tl.where(cols == block * BLOCK + index, x, 0.0), axis=0)
        tl.store(best_score_ptr + at, score)


@triton.jit
def _kth_largest(keys, k):
    """The largest key that at least k of `keys` reach."""
    found = tl.full((), 0, tl.uint32)
    for step in range(32):
        trial = found | (tl.full((), 0x80000000, tl.uint32) >> step)
        if tl.sum((keys >= trial).to(tl.int32), axis=0) >= k:
            found = trial
    return found


@triton.jit
def _nucleus(keys, weights, mass):
    """The largest key such that the weights of the keys from it on reach `mass`."""
    found = tl.full((), 0, tl.uint32)
    for step in range(32):
        trial = found | (tl.full((), 0x80000000, tl.uint32) >> step)
        if tl.sum(tl.where(keys >= trial, weights, 0.0), axis=0) >= mass:
            found = trial
    return found


@triton.jit
def _list_groups(group_keys, lowest, list_ptr, GROUPS: tl.constexpr):
    """Writes the groups that hold a key from `lowest` on, in order, and counts them."""
    is_listed = group_keys >= lowest
    at = tl.cumsum(is_listed.to(tl.int32), axis=0) - 1
    tl.debug_barrier()
    tl.store(list_ptr + at, tl.arange(0, GROUPS), mask=is_listed)
    tl.debug_barrier()
    return tl.sum(is_listed.to(tl.int32), axis=0)


@triton.jit
def _weigh(
    group_keys, lowest, list_ptr, largest,
    logits, counts, bias, bans, table, needs, is_banned,
    VOCAB: tl.constexpr, CONTROLS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """How many keys there are from `lowest` on, and the sum of their exponentials."""
    num_groups = _list_groups(group_keys, lowest, list_ptr, GROUPS)
    num = tl.zeros((LISTED, GROUP), tl.int32)
    mass = tl.zeros((LISTED, GROUP), tl.float32)
    begin = tl.full((), 0, tl.int32)
    while begin < num_groups:
        listed = begin + tl.arange(0, LISTED)
        group = tl.load(list_ptr + listed, mask=listed < num_groups, other=GROUPS)
        cols = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = _scores(
            logits, counts, bias, bans, table, needs, is_banned, cols, cols < VOCAB, CONTROLS
        )
        is_in = (_key(x) >= lowest) & (cols < VOCAB)
        num += is_in.to(tl.int32)
        mass += tl.where(is_in, tl.exp(x - largest), 0.0)
        begin += LISTED
    return tl.sum(tl.sum(num, axis=1), axis=0), tl.sum(tl.sum(mass, axis=1), axis=0)


@triton.jit
def _scan(
    group_keys, lowest, list_ptr, largest, stream,
    logits, counts, bias, bans, table, needs, is_banned,
    VOCAB: tl.constexpr, CONTROLS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """Of the keys from `lowest` on: the sum of exponentials; the best perturbed id, and its key."""
    num_groups = _list_groups(group_keys, lowest, list_ptr, GROUPS)
    mass = tl.zeros((LISTED, GROUP), tl.float32)
    best = tl.full((LISTED, GROUP), -INFINITY, tl.float32)
    best_id = tl.full((LISTED, GROUP), VOCAB, tl.int32)
    best_key = tl.zeros((LISTED, GROUP), tl.uint32)
    begin = tl.full((), 0, tl.int32)
    while begin < num_groups:
        listed = begin + tl.arange(0, LISTED)
        group = tl.load(list_ptr + listed, mask=listed < num_groups, other=GROUPS)
        cols = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = _scores(
            logits, counts, bias, bans, table, needs, is_banned, cols, cols < VOCAB, CONTROLS
        )
        key = _key(x)
        is_in = (key >= lowest) & (cols < VOCAB)
        mass += tl.where(is_in, tl.exp(x - largest), 0.0)
        perturbed = tl.where(is_in, x + _noise(stream, cols), -INFINITY)
        is_better = perturbed > best
        best = tl.where(is_better, perturbed, best)
        best_id = tl.where(is_better, cols, best_id)
        best_key = tl.where(is_better, key, best_key)
        begin += LISTED
    top = tl.max(tl.max(best, axis=1), axis=0)
    ids = tl.where(best == top, best_id, VOCAB)
    winner = tl.min(tl.min(ids, axis=1), axis=0)
    keys = tl.where(ids == winner, best_key, 0)
    winner_key = tl.max(tl.max(keys, axis=1), axis=0)
    return tl.sum(tl.sum(mass, axis=1), axis=0), winner, winner_key


@triton.jit
def _gather(
    group_keys, lowest, list_ptr, candidate_ptr, candidate_id_ptr,
    logits, counts, bias, bans, table, needs, is_banned,
    VOCAB: tl.constexpr, CONTROLS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    LISTED: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Writes the scores whose keys are from `lowest` on, by id, as far as there is room."""
    num_groups = _list_groups(group_keys, lowest, list_ptr, GROUPS)
    num = tl.full((), 0, tl.int32)
    begin = tl.full((), 0, tl.int32)
    while begin < num_groups:
        listed = begin + tl.arange(0, LISTED)
        group = tl.load(list_ptr + listed, mask=listed < num_groups, other=GROUPS)
        cols = tl.reshape(group[:, None] * GROUP + tl.arange(0, GROUP)[None, :], (LISTED * GROUP,))
        x = _scores(
            logits, counts, bias, bans, table, needs, is_banned, cols, cols < VOCAB, CONTROLS
        )
        is_in = (_key(x) >= lowest) & (cols < VOCAB)
        at = num + tl.cumsum(is_in.to(tl.int32), axis=0) - 1
        has_room = is_in & (at < CANDIDATES)
        tl.store(candidate_ptr + at, x, mask=has_room)
        tl.store(candidate_id_ptr + at, cols, mask=has_room)
        num += tl.sum(is_in.to(tl.int32), axis=0)
        begin += LISTED
    tl.debug_barrier()
    return num


@triton.jit
def _draw_among_few(
    group_keys, lowest, top_k, top_p, list_ptr, largest, stream, candidates, candidate_ids,
    logits, counts, bias, bans, table, needs, is_banned,
    VOCAB: tl.constexpr, CONTROLS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    LISTED: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Whether what a small top-k leaves fits in the candidates; token and threshold if so."""
    # The k-th largest group maximum is no larger than the k-th largest score.
    reach = tl.maximum(lowest, _kth_largest(group_keys, top_k))
    num = _gather(
        group_keys, reach, list_ptr, candidates, candidate_ids,
        logits, counts, bias, bans, table, needs, is_banned,
        VOCAB, CONTROLS, GROUP, GROUPS, LISTED, CANDIDATES,
    )  # fmt: skip
    token = tl.full((), 0, tl.int32)
    if num <= CANDIDATES:
        index = tl.arange(0, CANDIDATES)
        x = tl.load(candidates + index, mask=index < num, other=-INFINITY)
        ids = tl.load(candidate_ids + index, mask=index < num, other=VOCAB)
        keys = _key(x)
        lowest = tl.maximum(lowest, _kth_largest(keys, top_k))
        if top_p < 1:
            weights = tl.where(keys >= lowest, tl.exp(x - largest), 0.0)
            mass = top_p * tl.sum(weights, axis=0)
            lowest = tl.maximum(lowest, _nucleus(keys, weights, mass))
        is_kept = (keys >= lowest) & (index < num)
        perturbed = tl.where(is_kept, x + _noise(stream, ids), -INFINITY)
        _best, winner = tl.max(
            perturbed, axis=0, return_indices=True, return_indices_tie_break_left=True
        )
        token = tl.sum(tl.where(index == winner, ids, 0), axis=0)
    return num <= CANDIDATES, token, _value(lowest)


@triton.jit
def _draw_among_many(
    group_keys, lowest, log_min_p, top_k, top_p, list_ptr, largest, stream, token, score, mass,
    logits, counts, bias, bans, table, needs, is_banned,
    VOCAB: tl.constexpr, CONTROLS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """Token and threshold. Given are the best perturbed one of all tokens, and their mass."""
    token_key = _key(score)
    if top_k < VOCAB:
        kth = tl.full((), 0, tl.uint32)
        for step in range(32):
            trial = kth | (tl.full((), 0x80000000, tl.uint32) >> step)
            num, _mass = _weigh(
                group_keys, trial, list_ptr, largest,
                logits, counts, bias, bans, table, needs, is_banned,
                VOCAB, CONTROLS, GROUP, GROUPS, LISTED,
            )  # fmt: skip
            if num >= top_k:
                kth = trial
        lowest = tl.maximum(lowest, kth)
    if (top_k < VOCAB) | (log_min_p != -INFINITY):
        mass, token, token_key = _scan(
            group_keys, lowest, list_ptr, largest, stream,
            logits, counts, bias, bans, table, needs, is_banned,
            VOCAB, CONTROLS, GROUP, GROUPS, LISTED,
        )  # fmt: skip
    mass = mass * top_p
    if (top_p < 1) & ((needs & PROCESSED) != 0):
        # Its probabilities are wanted too, so the threshold itself is looked for.
        nucleus = tl.full((), 0, tl.uint32)
        for step in range(32):
            trial = nucleus | (tl.full((), 0x80000000, tl.uint32) >> step)
            _num, reached = _weigh(
                group_keys, tl.maximum(trial, lowest), list_ptr, largest,
                logits, counts, bias, bans, table, needs, is_banned,
                VOCAB, CONTROLS, GROUP, GROUPS, LISTED,
            )  # fmt: skip
            if reached >= mass:
                nucleus = trial
        lowest = tl.maximum(lowest, nucleus)
        if token_key < lowest:
            _kept, token, token_key = _scan(
                group_keys, lowest, list_ptr, largest, stream,
                logits, counts, bias, bans, table, needs, is_banned,
                VOCAB, CONTROLS, GROUP, GROUPS, LISTED,
            )  # fmt: skip
    is_settled = (top_p >= 1) | ((needs & PROCESSED) != 0)
    while is_settled == 0:
        above, next_token, next_key = _scan(
            group_keys, token_key + 1, list_ptr, largest, stream,
            logits, counts, bias, bans, table, needs, is_banned,
            VOCAB, CONTROLS, GROUP, GROUPS, LISTED,
        )  # fmt: skip
        is_settled = above < mass
        if is_settled == 0:
            token = next_token
            token_key = next_key
    return token, _value(lowest)


@triton.jit
def row_kernel(
    logits_ptr, stride, slots, positions, table_ptr, counts_ptr, bias_ptr, bans_ptr, is_banned_ptr,
    best_ptr, best_id_ptr, best_score_ptr, max_ptr, sum_ptr, group_max_ptr,
    list_ptr, candidate_ptr, candidate_id_ptr, recent_ptr,
    token_ptr, is_failed_ptr, threshold_ptr,
    VOCAB: tl.constexpr, NUM_COLUMNS: tl.constexpr, WIDTH: tl.constexpr, LENGTH: tl.constexpr,
    CONTROLS: tl.constexpr, FILTERS: tl.constexpr, COUNTS: tl.constexpr,
    NUM_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr,
    NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    SMALL_K: tl.constexpr, LISTED: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Draws a row's token from what is known of its blocks, filters where the row asks for it."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    position = tl.load(positions + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    block = tl.arange(0, BLOCKS)
    at = row * BLOCKS + block
    is_block = block < NUM_BLOCKS
    maxima = tl.load(max_ptr + at, mask=is_block, other=-INFINITY)
    largest = tl.max(maxima, axis=0)
    is_failed = (largest == INFINITY) | (largest == -INFINITY)
    best = tl.load(best_ptr + at, mask=is_block, other=-INFINITY)
    _best, winner = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.sum(
        tl.where(block == winner, tl.load(best_id_ptr + at, mask=is_block, other=0), 0), axis=0
    )
    threshold = tl.full((), -INFINITY, tl.float32)
    if FILTERS:
        if ((needs & FILTER) != 0) & (is_failed == 0):
            is_banned = tl.full((), 0, tl.int32)
            if CONTROLS:
                is_banned = tl.load(is_banned_ptr + row)
            logits = logits_ptr + row * stride
            counts = counts_ptr + slot * VOCAB
            bias = bias_ptr + slot * VOCAB
            bans = bans_ptr + row * WIDTH
            stream = _stream(table, position)
            lists = list_ptr + row * GROUPS
            group = tl.arange(0, GROUPS)
            group_max = tl.load(
                group_max_ptr + row * GROUPS + group, mask=group < NUM_GROUPS, other=-INFINITY
            )
            group_keys = _key(group_max)
            top_k = tl.load(table + TOP_K_COLUMN).to(tl.int32)
            top_p = _float(table, TOP_P_COLUMN)
            log_min_p = _float(table, MIN_P_COLUMN)
            lowest = _key(largest + log_min_p)
            is_drawn = False
            if top_k <= SMALL_K:
                is_drawn, token, threshold = _draw_among_few(
                    group_keys, lowest, top_k, top_p, lists, largest, stream,
                    candidate_ptr + row * CANDIDATES, candidate_id_ptr + row * CANDIDATES,
                    logits, counts, bias, bans, table, needs, is_banned,
                    VOCAB, CONTROLS, GROUP, GROUPS, LISTED, CANDIDATES,
                )  # fmt: skip
            if is_drawn == 0:
                sums = tl.load(sum_ptr + at, mask=is_block, other=0.0)
                scores = tl.load(best_score_ptr + at, mask=is_block, other=0.0)
                score = tl.sum(tl.where(block == winner, scores, 0.0), axis=0)
                token, threshold = _draw_among_many(
                    group_keys, lowest, log_min_p, top_k, top_p, lists, largest, stream,
                    token, score, tl.sum(sums * tl.exp(maxima - largest), axis=0),
                    logits, counts, bias, bans, table, needs, is_banned,
                    VOCAB, CONTROLS, GROUP, GROUPS, LISTED,
                )  # fmt: skip
    token = tl.minimum(token, VOCAB - 1)
    tl.store(token_ptr + row, token.to(tl.int64))
    tl.store(is_failed_ptr + row, is_failed)
    tl.store(threshold_ptr + row, threshold)
    if COUNTS:
        _count(token, slot, position, needs, counts_ptr, recent_ptr, VOCAB, LENGTH)


@triton.jit
def _count(
    token, slot, position, needs, counts_ptr, recent_ptr, VOCAB: tl.constexpr, LENGTH: tl.constexpr
):
    """Enters a token in the tables of its row."""
    if needs & PENALTIES:
        tl.atomic_add(counts_ptr + slot * VOCAB + token, 1)
    if needs & BAD_WORDS:
        tl.store(recent_ptr + slot * LENGTH + (position & (LENGTH - 1)), token)


@triton.jit
def count_kernel(
    slots, positions, table_ptr, token_ptr, counts_ptr, recent_ptr,
    VOCAB: tl.constexpr, NUM_COLUMNS: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    needs = tl.load(table_ptr + slot * NUM_COLUMNS + NEEDS_COLUMN)
    token = tl.load(token_ptr + row).to(tl.int32)
    _count(token, slot, tl.load(positions + row), needs, counts_ptr, recent_ptr, VOCAB, LENGTH)


@triton.jit
def process_kernel(
    logits_ptr, stride, slots, table_ptr, counts_ptr, bias_ptr, bans_ptr, is_banned_ptr,
    threshold_ptr, processed_ptr,
    VOCAB: tl.constexpr, NUM_COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    CONTROLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes one block of a row's scores after every control."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    table = table_ptr + slot * NUM_COLUMNS
    needs = tl.load(table + NEEDS_COLUMN)
    if needs & PROCESSED:
        is_banned = tl.full((), 0, tl.int32)
        if CONTROLS:
            is_banned = tl.load(is_banned_ptr + row)
        cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        x = _scores(
            logits_ptr + row * stride, counts_ptr + slot * VOCAB, bias_ptr + slot * VOCAB,
            bans_ptr + row * WIDTH, table, needs, is_banned, cols, cols < VOCAB, CONTROLS,
        )  # fmt: skip
        x = tl.where(x >= tl.load(threshold_ptr + row), x, -INFINITY)
        tl.store(processed_ptr + row * VOCAB + cols, x, mask=cols < VOCAB)
