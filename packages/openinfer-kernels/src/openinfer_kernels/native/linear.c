/* Products with weights packed in panels of 16 output rows, with the parts of a layer around
 * them: a norm of the rows of x before, a gate or a residual after.
 *
 * A lane holds an output row, so nothing is summed across lanes. A tile of rows of x is
 * multiplied with a panel while the panel is in registers and in the first cache, so a weight is
 * read from memory once a call, however many rows x has. K is even (bf16) or a multiple of 32
 * (int8 and int4, which have one scale for 32 columns of a row). Rows past N are packed as zeros
 * and never stored.
 *
 *   bf16  [N/16][K/2][16][2]
 *   int8  [N/16][K/2][16][2], and scales in bf16 [N/16][K/32][16]
 *   int4  [N/16][K/8][16][2] of 16-bit words; nibble j of word (r, p) is column 2 j + p, plus 8;
 *         scales as for int8
 *
 */
#include "rows.h"

enum { GROUP = 32, /* columns that share a scale */
       MAX_ROWS = 8, /* rows of x in a tile; with more, registers spill */
       STREAMED_ROWS = 2, /* up to this many rows, reading the weight takes all the time */
       AHEAD_BYTES = 4096 /* hardware stops prefetching at the end of a page */ };

typedef struct {
    bf16 *y;              /* [M, N], or [M, N / 2] if gated; it may be the residual */
    const bf16 *x;        /* [M, K], normalised */
    const void *w;
    const bf16 *scales;   /* int8 and int4 */
    const bf16 *residual; /* the shape of y, or NULL */
    int64_t M, N, K;
    int is_gated;         /* rows n and N / 2 + n are gate and up; N is a multiple of 32 */
} Product;

typedef __m512 Tile[MAX_ROWS]; /* sums of one panel: element i is a row of x with 16 rows of w */

INLINE void prefetch_ahead(const void *p) { _mm_prefetch((const char *)p + AHEAD_BYTES, _MM_HINT_T0); }

/* Independent sums for each row of x: with few rows, they hide the latency of the dot product. */
#define NUM_CHAINS(M) ((M) == 1 ? 4 : (M) == 2 ? 2 : 1)

INLINE __m512 sum_chains(const __m512 *chains, const int num_chains) {
    __m512 sum = chains[0];
    for (int j = 1; j < num_chains; j++) sum = _mm512_add_ps(sum, chains[j]);
    return sum;
}

/* Computes the sums of M rows of x, from row m on, with P panels, which begin at rows n[0] and
 * n[1]. Two panels at a time share the loads of x: a prefill loads more of x than of weights. */
INLINE void bf16_tiles(Tile *sums, const Product *p, const int64_t *n, int64_t m, const int M,
                       const int P) {
    const int S = NUM_CHAINS(M);
    const int64_t K = p->K;
    const bf16 *x = p->x + m * K, *w[2];
    __m512 acc[MAX_ROWS][2][4];
    for (int c = 0; c < P; c++) w[c] = (const bf16 *)p->w + n[c] * K;
    for (int i = 0; i < M; i++)
        for (int c = 0; c < P; c++)
            for (int j = 0; j < S; j++) acc[i][c][j] = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + 8 <= K; k += 8) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512bh wv[2];
            for (int c = 0; c < P; c++) wv[c] = load_bf16(w[c] + 16 * (k + 2 * j));
            for (int i = 0; i < M; i++)
                for (int c = 0; c < P; c++)
                    acc[i][c][j % S] =
                        dot(acc[i][c][j % S], wv[c], broadcast_pair(x + i * K + k + 2 * j));
        }
    }
    for (; k < K; k += 2)
        for (int i = 0; i < M; i++)
            for (int c = 0; c < P; c++)
                acc[i][c][0] =
                    dot(acc[i][c][0], load_bf16(w[c] + 16 * k), broadcast_pair(x + i * K + k));
    for (int i = 0; i < M; i++)
        for (int c = 0; c < P; c++) sums[c][i] = sum_chains(acc[i][c], S);
}

INLINE void bf16_tile(Tile *sums, const Product *p, const int64_t *n, int64_t m, const int M) {
    bf16_tiles(sums, p, n, m, M, 1);
}

INLINE __m512bh int8_pair(const int8_t *w) {
    const __m128i *q = (const __m128i *)w;
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(q)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(q + 1)));
    return _mm512_cvtne2ps_pbh(high, low);
}

INLINE void int8_tile(Tile *sums, const Product *p, const int64_t *n, int64_t m, const int M) {
    const int S = NUM_CHAINS(M);
    const int64_t K = p->K;
    const bf16 *x = p->x + m * K, *scales = p->scales + *n * (K / GROUP);
    const int8_t *w = (const int8_t *)p->w + *n * K;
    __m512 acc[MAX_ROWS];
    for (int i = 0; i < M; i++) acc[i] = _mm512_setzero_ps();
    for (int64_t g = 0; g < K / GROUP; g++) {
        __m512 part[MAX_ROWS][4];
        for (int i = 0; i < M; i++)
            for (int j = 0; j < S; j++) part[i][j] = _mm512_setzero_ps();
#pragma GCC unroll 16
        for (int b = 0; b < GROUP / 2; b++) {
            const __m512bh wv = int8_pair(w + (g * (GROUP / 2) + b) * 32);
            for (int i = 0; i < M; i++)
                part[i][b % S] =
                    dot(part[i][b % S], wv, broadcast_pair(x + i * K + g * GROUP + 2 * b));
        }
        const __m512 scale = widen16(scales + g * 16);
        for (int i = 0; i < M; i++) acc[i] = _mm512_fmadd_ps(sum_chains(part[i], S), scale, acc[i]);
    }
    for (int i = 0; i < M; i++) sums[0][i] = acc[i];
}

/* The numbers from -8 to 7 in bf16, twice. */
static const bf16 int4_values[32] = {
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
    0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
    0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
};

INLINE void int4_tile(Tile *sums, const Product *p, const int64_t *n, int64_t m, const int M) {
    const int S = NUM_CHAINS(M);
    const int64_t K = p->K;
    const bf16 *x = p->x + m * K, *scales = p->scales + *n * (K / GROUP);
    const uint16_t *w = (const uint16_t *)p->w + *n * K / 4;
    const __m512i values = _mm512_loadu_si512(int4_values);
    __m512 acc[MAX_ROWS];
    for (int i = 0; i < M; i++) acc[i] = _mm512_setzero_ps();
    for (int64_t g = 0; g < K / GROUP; g++) {
        __m512 part[MAX_ROWS][4];
        for (int i = 0; i < M; i++)
            for (int j = 0; j < S; j++) part[i][j] = _mm512_setzero_ps();
#pragma GCC unroll 4
        for (int b = 0; b < GROUP / 8; b++) {
            const uint16_t *at = w + (g * (GROUP / 8) + b) * 32;
            const __m512i q = _mm512_loadu_si512(at);
            if (M <= STREAMED_ROWS) prefetch_ahead(at);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                /* The table has every value twice, so the bit above the nibble does not matter. */
                const __m512i nibbles = _mm512_srli_epi16(q, 4 * j);
                const __m512bh wv = (__m512bh)_mm512_permutexvar_epi16(nibbles, values);
                for (int i = 0; i < M; i++)
                    part[i][j % S] = dot(part[i][j % S], wv,
                                         broadcast_pair(x + i * K + g * GROUP + 8 * b + 2 * j));
            }
        }
        const __m512 scale = widen16(scales + g * 16);
        for (int i = 0; i < M; i++) acc[i] = _mm512_fmadd_ps(sum_chains(part[i], S), scale, acc[i]);
    }
    for (int i = 0; i < M; i++) sums[0][i] = acc[i];
}

/* Multiplies a tile of `rows` rows with two panels, or with the first if n[1] is past the weight. */
typedef void Sums(Tile *sums, const Product *p, const int64_t *n, int64_t m, int64_t rows);

#define CASE(KIND, M)                                                                   \
    case M:                                                                             \
        for (int c = 0; c < 2; c++)                                                     \
            if (n[c] < p->N) KIND##_tile(sums + c, p, n + c, m, M);                     \
        break;
#define DEFINE_SUMS(KIND)                                                               \
    static void KIND##_sums(Tile *sums, const Product *p, const int64_t *n, int64_t m,  \
                            int64_t rows) {                                             \
        switch (rows) {                                                                 \
            CASE(KIND, 8) CASE(KIND, 7) CASE(KIND, 6) CASE(KIND, 5)                     \
            CASE(KIND, 4) CASE(KIND, 3) CASE(KIND, 2) CASE(KIND, 1)                     \
        }                                                                               \
    }
DEFINE_SUMS(bf16)
DEFINE_SUMS(int8)
DEFINE_SUMS(int4)

static void bf16_sums_in_pairs(Tile *sums, const Product *p, const int64_t *n, int64_t m,
                              int64_t rows) {
    if (rows == MAX_ROWS && n[1] < p->N)
        bf16_tiles(sums, p, n, m, MAX_ROWS, 2);
    else
        bf16_sums(sums, p, n, m, rows);
}

/* Adds the residual to a row of a tile, and stores it. */
INLINE void store_row(const Product *p, int64_t row, int64_t n, int64_t width, __m512 y) {
    const __mmask16 lanes = first_lanes(width - n);
    const int64_t at = row * width + n;
    if (p->residual) y = _mm512_add_ps(y, widen_masked(lanes, p->residual + at));
    store_masked(p->y + at, lanes, y);
}

/* Multiplies all rows of x with two panels: a gate panel and its up panel, or two neighbours. */
static void multiply_panels(const Product *p, Sums *sums_of, const int64_t *n) {
    for (int64_t m = 0; m < p->M; m += MAX_ROWS) {
        const int64_t rows = p->M - m < MAX_ROWS ? p->M - m : MAX_ROWS;
        Tile sums[2];
        sums_of(sums, p, n, m, rows);
        for (int64_t i = 0; i < rows; i++)
            if (p->is_gated) {
                store_row(p, m + i, n[0], p->N / 2, silu_mul(sums[0][i], sums[1][i]));
            } else {
                store_row(p, m + i, n[0], p->N, sums[0][i]);
                if (n[1] < p->N) store_row(p, m + i, n[1], p->N, sums[1][i]);
            }
    }
}

/* Replaces p->x by its normalised rows. Returns 0, or 1 if there is no memory for them. */
static int normalise_rows(Product *p, const bf16 *norm, float eps, int num_threads) {
    static __thread Scratch scratch;
    const int64_t M = p->M, K = p->K;
    const bf16 *x = p->x;
    bf16 *y = reserve(&scratch, 1 + M * K * sizeof(bf16));
    if (!y) return 1;
    const int threads = threads_for(M * K, num_threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t m = 0; m < M; m++) rms_normalise(y + m * K, x + m * K, norm, K, eps);
    p->x = y;
    return 0;
}

static int multiply(Product *p, Sums *sums_of, const bf16 *norm, float eps, int num_threads) {
    if (norm && normalise_rows(p, norm, eps, num_threads)) return 1;
    const int64_t width = p->is_gated ? p->N / 2 : p->N, each = p->is_gated ? 16 : 32;
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t n = 0; n < width; n += each)
        multiply_panels(p, sums_of, (const int64_t[]){n, p->is_gated ? width + n : n + 16});
    return 0;
}

/* Computes y = residual + gate(norm(x) w^T). norm is [K] or NULL; residual has the shape of y, or
 * is NULL. OpenMP threads share the panels. Returns 0, or 1 if there is no memory. */
#define DEFINE_LINEAR(KIND, SUMS)                                                               \
    int linear_##KIND(bf16 *y, const bf16 *x, const void *w, const bf16 *scales,                \
                      const bf16 *norm, const bf16 *residual, int64_t M, int64_t N, int64_t K,  \
                      int is_gated, float eps, int num_threads) {                               \
        Product p = {y, x, w, scales, residual, M, N, K, is_gated};                             \
        return multiply(&p, SUMS, norm, eps, num_threads);                                      \
    }
DEFINE_LINEAR(bf16, bf16_sums_in_pairs)
DEFINE_LINEAR(int8, int8_sums)
DEFINE_LINEAR(int4, int4_sums)
