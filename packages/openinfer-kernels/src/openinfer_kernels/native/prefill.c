/* Prefill attention over a paged bf16 cache: several queries per sequence, whole prompts or
 * chunks.
 *
 * A task is some queries of one sequence, with one key head and all query heads that read it. A
 * row is one query with one head. A task goes through the keys in batches of 64 tokens, packs
 * each batch once in the order that VDPBF16PS reads, and keeps a running softmax (FlashAttention,
 * Dao et al., 2022). Scores, sums of weights and outputs are float32; weights are rounded to bf16
 * before they are multiplied with values.
 */
#include "prefill.h"

enum {
    KEYS = 64,          /* tokens of a batch: keys and values of a head of 128 fill the first cache */
    LANES = KEYS / 16,  /* registers for the scores of a row */
    TILE = 6,           /* rows at a time: 24 registers for sums, 4 for operands */
    ROWS_PER_TASK = 120,
    MAX_HEAD_DIM = 256
};

/* Memory of one thread: operands in the order in which they are multiplied, and the rows' state. */
typedef struct {
    bf16 *keys;    /* [D / 2][KEYS][2] */
    bf16 *values;  /* [KEYS / 2][width][2] */
    bf16 *queries; /* [rows][D] */
    bf16 *weights; /* [TILE][KEYS] */
    float *out;    /* [rows][width] */
    float *maximum, *sum;
    int64_t width; /* D, but at least 64; outputs past D are never read */
} Work;

typedef struct {
    const int32_t *blocks;
    int64_t first_token;           /* row of q and out */
    int64_t first_position;        /* position of the first query in its sequence */
    int64_t num_queries, kv_head;
    int64_t group, num_rows, num_padded; /* rows are ordered by query, then by head */
} Task;

static __thread Scratch scratch;

static int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static int64_t queries_per_task(const Step *a) {
    const int64_t queries = ROWS_PER_TASK / (a->num_heads / a->num_kv_heads);
    return queries > 1 ? queries : 1;
}

static int allocate_work(const Step *a, Work *work) {
    const int64_t D = a->head_dim, group = a->num_heads / a->num_kv_heads;
    const int64_t rows = round_up(queries_per_task(a) * group, TILE);
    work->width = round_up(D, 64);
    const int64_t halves = KEYS * (D + work->width + TILE) + rows * D;
    const int64_t floats = rows * (work->width + 2);
    float *at = reserve(&scratch, floats * sizeof(float) + halves * sizeof(bf16));
    if (!at) return 1;
    work->out = at;
    work->maximum = at + rows * work->width;
    work->sum = work->maximum + rows;
    work->keys = (bf16 *)(work->sum + rows);
    work->values = work->keys + KEYS * D;
    work->weights = work->values + KEYS * work->width;
    work->queries = work->weights + KEYS * TILE;
    return 0;
}

/* Transposes 16 rows of 16 words. */
INLINE void transpose(__m512i *r) {
    __m512i a[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        const __m512i low = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        const __m512i high = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        const __m512i low_odd = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        const __m512i high_odd = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
        a[i] = _mm512_shuffle_i32x4(low, high, 0x88);
        a[i + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
        a[i + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        a[i + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
    for (int i = 0; i < 16; i++) r[i] = a[i];
}

static void pack_keys(bf16 *keys, const bf16 *const *rows, int64_t D) {
    for (int64_t t = 0; t < KEYS; t += 16)
        for (int64_t d = 0; d < D; d += 32) {
            __m512i r[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(rows[t + i] + d);
            transpose(r);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                _mm512_storeu_si512(keys + (d + 2 * i) * KEYS + 2 * t, r[i]);
        }
}

static void pack_values(bf16 *values, const bf16 *const *rows, int64_t D, int64_t width) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                         39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int64_t t = 0; t < KEYS; t += 2)
        for (int64_t d = 0; d < D; d += 32) {
            const __m512i first = _mm512_loadu_si512(rows[t] + d);
            const __m512i second = _mm512_loadu_si512(rows[t + 1] + d);
            bf16 *at = values + t * width + 2 * d;
            _mm512_storeu_si512(at, _mm512_permutex2var_epi16(first, low, second));
            _mm512_storeu_si512(at + 32, _mm512_permutex2var_epi16(first, high, second));
        }
}

/* Packs the keys and values of a batch from token t on. Tokens past `end` are zeros, whatever the
 * cache holds. */
static void pack_block(const Step *a, const Task *task, Work *work, int64_t t, int64_t end) {
    static const bf16 zeros[MAX_HEAD_DIM];
    const bf16 *keys[KEYS], *values[KEYS];
    for (int64_t i = 0; i < KEYS; i++) {
        if (t + i < end) {
            const int64_t at = cache_offset(a, task->blocks, t + i) + task->kv_head * a->head_dim;
            keys[i] = a->k + at;
            values[i] = a->v + at;
        } else {
            keys[i] = values[i] = zeros;
        }
    }
    pack_keys(work->keys, keys, a->head_dim);
    pack_values(work->values, values, a->head_dim, work->width);
}

/* Computes the unscaled scores of TILE rows. */
INLINE void score(__m512 scores[TILE][LANES], const bf16 *queries, const bf16 *keys, int64_t D) {
#pragma GCC unroll 6
    for (int m = 0; m < TILE; m++)
#pragma GCC unroll 4
        for (int j = 0; j < LANES; j++) scores[m][j] = _mm512_setzero_ps();
    for (int64_t d = 0; d < D; d += 2) {
        __m512bh key[LANES];
#pragma GCC unroll 4
        for (int j = 0; j < LANES; j++) key[j] = load_bf16(keys + d * KEYS + 32 * j);
#pragma GCC unroll 6
        for (int m = 0; m < TILE; m++)
#pragma GCC unroll 4
            for (int j = 0; j < LANES; j++)
                scores[m][j] = dot(scores[m][j], key[j], broadcast_pair(queries + m * D + d));
    }
}

/* Turns a row's scores into weights; the row sees the first `num_visible` tokens of the batch.
 * Returns the factor for everything summed up before. */
INLINE float softmax_step(__m512 *scores, int64_t num_visible, float scale, float *maximum, float *sum,
                    bf16 *weights) {
    const __m512 by = _mm512_set1_ps(scale), least = _mm512_set1_ps(-INFINITY);
    __mmask16 live[LANES];
    __m512 most = least;
    for (int j = 0; j < LANES; j++) {
        const int64_t visible = num_visible - 16 * j;
        live[j] = first_lanes(visible > 0 ? visible : 0);
        scores[j] = _mm512_mul_ps(scores[j], by);
        most = _mm512_max_ps(most, _mm512_mask_mov_ps(least, live[j], scores[j]));
    }
    const float top = fmaxf(*maximum, _mm512_reduce_max_ps(most));
    const float shrink =
        *maximum == top ? 1.f : _mm512_cvtss_f32(exp16(_mm512_set1_ps(*maximum - top)));
    __m512 total = _mm512_setzero_ps();
    for (int j = 0; j < LANES; j++) {
        const __m512 above = _mm512_sub_ps(scores[j], _mm512_set1_ps(top));
        scores[j] = _mm512_maskz_mov_ps(live[j], exp16(above));
        total = _mm512_add_ps(total, scores[j]);
    }
    for (int j = 0; j < LANES; j += 2)
        _mm512_storeu_si512(weights + 16 * j,
                            (__m512i)_mm512_cvtne2ps_pbh(scores[j + 1], scores[j]));
    *maximum = top;
    *sum = *sum * shrink + _mm512_reduce_add_ps(total);
    return shrink;
}

/* Computes out = out * shrink + weights @ values for TILE rows. */
INLINE void add_values(float *out, const float *shrink, const bf16 *weights, const bf16 *values,
                  int64_t width, int64_t count) {
    for (int64_t d = 0; d < width; d += 64) {
        __m512 sums[TILE][4];
#pragma GCC unroll 6
        for (int m = 0; m < TILE; m++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                sums[m][j] = _mm512_mul_ps(_mm512_loadu_ps(out + m * width + d + 16 * j),
                                           _mm512_set1_ps(shrink[m]));
        for (int64_t t = 0; t < count; t += 2) {
            __m512bh value[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                value[j] = load_bf16(values + t * width + 2 * d + 32 * j);
#pragma GCC unroll 6
            for (int m = 0; m < TILE; m++)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                    sums[m][j] = dot(sums[m][j], value[j], broadcast_pair(weights + m * KEYS + t));
        }
#pragma GCC unroll 6
        for (int m = 0; m < TILE; m++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                _mm512_storeu_ps(out + m * width + d + 16 * j, sums[m][j]);
    }
}

INLINE int64_t position(const Task *task, int64_t row) {
    const int64_t query = (row < task->num_rows ? row : task->num_rows - 1) / task->group;
    return task->first_position + query;
}

/* Attends from TILE rows, beginning at `row`, to `count` tokens from token t on. */
static void attend_tile(const Step *a, const Task *task, Work *work, int64_t row, int64_t t,
                        int64_t count) {
    if (position(task, row + TILE - 1) < t) return;
    __m512 scores[TILE][LANES];
    float shrink[TILE];
    score(scores, work->queries + row * a->head_dim, work->keys, a->head_dim);
    for (int m = 0; m < TILE; m++)
        shrink[m] = softmax_step(scores[m], position(task, row + m) + 1 - t, a->scale,
                           work->maximum + row + m, work->sum + row + m, work->weights + m * KEYS);
    add_values(work->out + row * work->width, shrink, work->weights, work->values, work->width, count);
}

static void load_queries(const Step *a, const Task *task, Work *work) {
    const int64_t D = a->head_dim;
    for (int64_t row = 0; row < task->num_padded; row++) {
        bf16 *to = work->queries + row * D;
        const int64_t head = task->kv_head * task->group + row % task->group;
        const int64_t token = task->first_token + row / task->group;
        if (row < task->num_rows)
            memcpy(to, a->q + token * a->q_stride + head * D, D * sizeof(bf16));
        else
            memset(to, 0, D * sizeof(bf16));
        work->maximum[row] = -INFINITY;
        work->sum[row] = 0.f;
    }
    memset(work->out, 0, task->num_padded * work->width * sizeof(float));
}

static void store_outputs(const Step *a, const Task *task, const Work *work) {
    const int64_t D = a->head_dim;
    for (int64_t row = 0; row < task->num_rows; row++) {
        const int64_t head = task->kv_head * task->group + row % task->group;
        const int64_t token = task->first_token + row / task->group;
        bf16 *out = a->out + (token * a->num_heads + head) * D;
        /* A row that sees no token is zero. */
        const __m512 by = _mm512_set1_ps(work->sum[row] == 0.f ? 0.f : 1.f / work->sum[row]);
        for (int64_t d = 0; d < D; d += 16)
            store_masked(out + d, 0xffff,
                         _mm512_mul_ps(_mm512_loadu_ps(work->out + row * work->width + d), by));
    }
}

static void attend(const Step *a, const Task *task, Work *work) {
    const int64_t num_keys = task->first_position + task->num_queries;
    load_queries(a, task, work);
    for (int64_t t = 0; t < num_keys; t += KEYS) {
        const int64_t count = num_keys - t < KEYS ? num_keys - t : KEYS;
        pack_block(a, task, work, t, num_keys);
        for (int64_t row = 0; row < task->num_padded; row += TILE)
            attend_tile(a, task, work, row, t, count);
    }
    store_outputs(a, task, work);
}

static int64_t num_tasks_in(const Step *a, int64_t seq) {
    const int64_t queries = num_queries(a, seq), each = queries_per_task(a);
    return queries > 1 && a->seq_lens[seq] ? (queries + each - 1) / each * a->num_kv_heads : 0;
}

/* Returns task i of a sequence. The last queries come first, since they see the most tokens. */
static Task nth_task(const Step *a, int64_t seq, int64_t i) {
    const int64_t queries = num_queries(a, seq), each = queries_per_task(a);
    const int64_t span = num_tasks_in(a, seq) / a->num_kv_heads - 1 - i / a->num_kv_heads;
    const int64_t first_query = span * each, remaining = queries - first_query;
    const int64_t count = remaining < each ? remaining : each, group = a->num_heads / a->num_kv_heads;
    return (Task){
        .blocks = a->block_table + seq * a->table_stride,
        .first_token = a->cu_seqlens_q[seq] + first_query,
        .first_position = a->seq_lens[seq] - queries + first_query,
        .num_queries = count,
        .kv_head = i % a->num_kv_heads,
        .group = group,
        .num_rows = count * group,
        .num_padded = round_up(count * group, TILE),
    };
}

int attend_prefills(const Step *a) {
    int64_t num_tasks = 0;
    for (int64_t seq = 0; seq < a->num_seqs; seq++) {
        num_tasks += num_tasks_in(a, seq);
        if (num_queries(a, seq) > 1 && !a->seq_lens[seq])
            memset(a->out + a->cu_seqlens_q[seq] * a->num_heads * a->head_dim, 0,
                   num_queries(a, seq) * a->num_heads * a->head_dim * sizeof(bf16));
    }
    if (!num_tasks) return 0;
    int failed = 0;
#pragma omp parallel num_threads(a->num_threads) reduction(| : failed)
    {
        Work work;
        failed = allocate_work(a, &work);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < num_tasks; i++) {
            int64_t seq = 0, first = 0;
            while (i - first >= num_tasks_in(a, seq)) first += num_tasks_in(a, seq++);
            const Task task = nth_task(a, seq, i - first);
            if (!failed) attend(a, &task, &work);
        }
    }
    return failed;
}
