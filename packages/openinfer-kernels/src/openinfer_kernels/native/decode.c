/* Decode attention over a paged bf16 cache: one query per sequence; blocks are read in place.
 *
 * A task is a span of one sequence with all heads. Keys and values are read once, in the order in
 * which they lie in memory, and nothing is gathered. A long sequence is cut into several tasks,
 * whose partial softmaxes are merged (Flash-Decoding, Dao et al., 2023).
 */
#include "decode.h"

enum { TOKENS = 16, MIN_TOKENS_PER_TASK = 256, TASKS_PER_THREAD = 8, MAX_HEAD_DIM = 256 };

/* Returns a vector whose lane t is the sum over all lanes of a[t]. */
INLINE __m512 sums_of_16(const __m512 *a) {
    __m512 b[8], c[4];
    for (int i = 0; i < 8; i++)
        b[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                             _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d x = _mm512_castps_pd(b[2 * i]), y = _mm512_castps_pd(b[2 * i + 1]);
        c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x44),
                                     _mm512_shuffle_f32x4(c[0], c[1], 0xee));
    const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(c[2], c[3], 0x44),
                                      _mm512_shuffle_f32x4(c[2], c[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                         _mm512_shuffle_f32x4(low, high, 0xdd));
}

/* Adds 16 scores to the running maximum and sum of one head. Returns the weights of the 16
 * tokens, and in `shrink` the factor for everything summed up before. */
INLINE __m512 softmax_step(__m512 scores, __mmask16 live, float *maximum, float *sum, float *shrink) {
    const float top = fmaxf(*maximum, _mm512_mask_reduce_max_ps(live, scores));
    *shrink = *maximum == top ? 1.f : _mm512_cvtss_f32(exp16(_mm512_set1_ps(*maximum - top)));
    const __m512 above = _mm512_sub_ps(scores, _mm512_set1_ps(top));
    const __m512 weights = _mm512_maskz_mov_ps(live, exp16(above));
    *maximum = top;
    *sum = *sum * *shrink + _mm512_reduce_add_ps(weights);
    return weights;
}

INLINE __m512 score(const Step *a, const bf16 *q, const bf16 *k, int count, const int D) {
    const int64_t width = a->num_kv_heads * D;
    __m512 products[TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < TOKENS; t++) {
        /* Lanes past the end read the last token again; they are masked later. */
        const bf16 *key = k + (t < count ? t : count - 1) * width;
        products[t] = _mm512_setzero_ps();
        for (int d = 0; d < D; d += 32)
            products[t] = dot(products[t], load_bf16(q + d), load_bf16(key + d));
    }
    return _mm512_mul_ps(sums_of_16(products), _mm512_set1_ps(a->scale));
}

/* Adds up to 16 tokens to one head. In each group of 32 dimensions, `acc` holds the even dimensions
 * first, then the odd ones. */
INLINE void attend_head(const Step *a, const bf16 *q, const bf16 *k, const bf16 *v, int count,
                        float *maximum, float *sum, float *acc, const int D) {
    const int64_t width = a->num_kv_heads * D;
    float weights[TOKENS], shrink;
    _mm512_storeu_ps(weights, softmax_step(score(a, q, k, count, D), first_lanes(count), maximum, sum,
                                     &shrink));
    const __m512i odd = _mm512_set1_epi32((int)0xffff0000);
    __m512 out[MAX_HEAD_DIM / 16];
    for (int i = 0; i < D / 16; i++)
        out[i] = _mm512_mul_ps(_mm512_loadu_ps(acc + 16 * i), _mm512_set1_ps(shrink));
    for (int t = 0; t < count; t++) {
        const __m512 weight = _mm512_set1_ps(weights[t]);
        for (int i = 0; i < D / 32; i++) {
            const __m512i x = _mm512_loadu_si512(v + t * width + 32 * i);
            const __m512 even_dims = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
            const __m512 odd_dims = _mm512_castsi512_ps(_mm512_and_si512(x, odd));
            out[2 * i] = _mm512_fmadd_ps(weight, even_dims, out[2 * i]);
            out[2 * i + 1] = _mm512_fmadd_ps(weight, odd_dims, out[2 * i + 1]);
        }
    }
    for (int i = 0; i < D / 16; i++) _mm512_storeu_ps(acc + 16 * i, out[i]);
}

typedef struct {
    const bf16 *k, *v; /* key and value of the first token */
    int count;         /* number of tokens, all in one block: at most TOKENS */
} Tokens;

/* Prefetches one share of the bytes. A head reads 16 short runs that lie far apart, which no
 * hardware prefetcher follows. So while the heads work on these tokens, the next tokens are
 * prefetched in the order of memory, one share by each head. */
INLINE void prefetch_share(const bf16 *p, int64_t num_bytes, int64_t share, int64_t num_shares) {
    const int64_t begin = num_bytes * share / num_shares, end = num_bytes * (share + 1) / num_shares;
    for (int64_t i = begin; i < end; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

INLINE void attend_tokens(const Step *a, const bf16 *q, Tokens now, Tokens next, float *state,
                          const int D) {
    const int64_t H = a->num_heads, group = H / a->num_kv_heads;
    const int64_t next_bytes = next.count * a->num_kv_heads * D * (int64_t)sizeof(bf16);
    float *maximum = state, *sum = state + H, *acc = state + 2 * H;
    for (int64_t h = 0; h < H; h++) {
        prefetch_share(next.k, next_bytes, h, H);
        prefetch_share(next.v, next_bytes, h, H);
        const int64_t at = h / group * D;
        attend_head(a, q + h * D, now.k + at, now.v + at, now.count, maximum + h, sum + h,
                    acc + h * D, D);
    }
}

static Tokens tokens_from(const Step *a, const int32_t *blocks, int64_t t, int64_t end) {
    const int64_t offset = t % a->block_size;
    int64_t count = a->block_size - offset;
    if (count > TOKENS) count = TOKENS;
    if (count > end - t) count = end - t;
    if (count <= 0) return (Tokens){a->k, a->v, 0};
    const int64_t at = cache_offset(a, blocks, t);
    return (Tokens){a->k + at, a->v + at, (int)count};
}

/* Attends to the tokens begin <= t < end of one sequence. The state is maximum [H], sum [H],
 * acc [H][D]. */
static void attend_span(const Step *a, const bf16 *q, const int32_t *blocks, int64_t begin,
                           int64_t end, float *state) {
    for (int64_t h = 0; h < a->num_heads; h++) state[h] = -INFINITY;
    memset(state + a->num_heads, 0, sizeof(float) * a->num_heads * (1 + a->head_dim));
    Tokens now = tokens_from(a, blocks, begin, end);
    for (int64_t t = begin; t < end;) {
        t += now.count;
        const Tokens next = tokens_from(a, blocks, t, end);
        switch (a->head_dim) {
        case 32: attend_tokens(a, q, now, next, state, 32); break;
        case 64: attend_tokens(a, q, now, next, state, 64); break;
        case 128: attend_tokens(a, q, now, next, state, 128); break;
        case 256: attend_tokens(a, q, now, next, state, 256); break;
        }
        now = next;
    }
}

static void merge(const Step *a, bf16 *out, const float *states, int64_t num_states) {
    const int64_t H = a->num_heads, D = a->head_dim, size = H * (2 + D);
    for (int64_t h = 0; h < H; h++) {
        float top = -INFINITY, total = 0.f, merged[MAX_HEAD_DIM] = {0};
        for (int64_t i = 0; i < num_states; i++) top = fmaxf(top, states[i * size + h]);
        for (int64_t i = 0; i < num_states; i++) {
            const float *state = states + i * size, *acc = state + 2 * H + h * D;
            const float weight = expf(state[h] - top);
            total += weight * state[H + h];
            for (int64_t d = 0; d < D; d++) merged[d] += weight * acc[d];
        }
        for (int64_t d = 0; d < D; d += 32) {
            /* Even dimensions go to the low halves of 16 words, odd dimensions to the high halves. */
            const __m512 by = _mm512_set1_ps(1.f / total);
            const __m512 even_dims = _mm512_mul_ps(_mm512_loadu_ps(merged + d), by);
            const __m512 odd_dims = _mm512_mul_ps(_mm512_loadu_ps(merged + d + 16), by);
            const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even_dims));
            const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd_dims));
            _mm512_storeu_si512(out + h * D + d, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
    }
}

typedef struct {
    int64_t seq, begin, end;
} Task;

/* Writes the tasks, unless `tasks` is NULL, and returns their number. */
static int64_t make_tasks(const Step *a, Task *tasks, int64_t span) {
    int64_t num_tasks = 0;
    for (int64_t s = 0; s < a->num_seqs; s++) {
        if (num_queries(a, s) != 1) continue;
        for (int64_t t = 0; t < a->seq_lens[s]; t += span, num_tasks++)
            if (tasks) {
                const int64_t end = t + span < a->seq_lens[s] ? t + span : a->seq_lens[s];
                tasks[num_tasks] = (Task){s, t, end};
            }
    }
    return num_tasks;
}

static int64_t span_length(const Step *a) {
    int64_t num_tokens = 0;
    for (int64_t s = 0; s < a->num_seqs; s++)
        if (num_queries(a, s) == 1) num_tokens += a->seq_lens[s];
    const int64_t span = num_tokens / (a->num_threads * TASKS_PER_THREAD) / TOKENS * TOKENS;
    return span < MIN_TOKENS_PER_TASK ? MIN_TOKENS_PER_TASK : span;
}

static void merge_all(const Step *a, const float *states, int64_t state_size, int64_t span) {
    for (int64_t s = 0; s < a->num_seqs; s++) {
        if (num_queries(a, s) != 1) continue;
        const int64_t num_states = (a->seq_lens[s] + span - 1) / span;
        bf16 *row = a->out + a->cu_seqlens_q[s] * a->num_heads * a->head_dim;
        if (num_states)
            merge(a, row, states, num_states);
        else
            memset(row, 0, sizeof(bf16) * a->num_heads * a->head_dim);
        states += num_states * state_size;
    }
}

int attend_decodes(const Step *a) {
    static __thread Scratch scratch;
    const int64_t span = span_length(a), num_tasks = make_tasks(a, NULL, span);
    const int64_t state_size = a->num_heads * (2 + a->head_dim);
    Task *tasks = reserve(&scratch, 1 + num_tasks * (state_size * sizeof(float) + sizeof(Task)));
    if (!tasks) return 1;
    float *states = (float *)(tasks + num_tasks);
    make_tasks(a, tasks, span);
    const int threads = num_tasks < a->num_threads ? (int)num_tasks : a->num_threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < num_tasks; i++) {
        const Task task = tasks[i];
        attend_span(a, a->q + a->cu_seqlens_q[task.seq] * a->q_stride,
                       a->block_table + task.seq * a->table_stride, task.begin, task.end,
                       states + i * state_size);
    }
    merge_all(a, states, state_size, span);
    return 0;
}
