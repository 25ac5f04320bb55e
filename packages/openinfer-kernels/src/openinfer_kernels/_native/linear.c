/* Products with weights packed in panels of 16 output rows.
 *
 * A lane holds an output row, so nothing is summed across lanes, and a tile of x's rows is multiplied
 * with a panel while the panel is in registers and the first cache: a weight is read from memory once
 * a call, however many rows x has. K is even (bf16) or a multiple of 32 (int8, int4: one scale for 32
 * columns of a row). Rows past N are packed as zeros and never stored.
 *
 *   bf16  [N/16][K/2][16][2]
 *   int8  the same of int8, and scales bf16 [N/16][K/32][16]
 *   int4  [N/16][K/8][16][2] of 16-bit words; nibble j of word (r, p) is column 2 j + p, offset by 8
 */
#include "common.h"

enum { GROUP = 32, /* columns that share a scale */
       MAX_ROWS = 8 /* of x in a tile; with more, registers spill */ };

/* Several sums a row of x hide the latency of the dot product when there are few rows. */
#define NUM_CHAINS(M) ((M) == 1 ? 4 : (M) == 2 ? 2 : 1)

INLINE __m512 gathered(const __m512 *chains, const int num_chains) {
    __m512 sum = chains[0];
    for (int j = 1; j < num_chains; j++) sum = _mm512_add_ps(sum, chains[j]);
    return sum;
}

INLINE void bf16_tile(bf16 *y, const bf16 *x, const bf16 *w, int64_t N, int64_t K, __mmask16 rows,
                      const int M) {
    const int S = NUM_CHAINS(M);
    __m512 acc[MAX_ROWS][4];
    for (int m = 0; m < M; m++)
        for (int j = 0; j < S; j++) acc[m][j] = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + 8 <= K; k += 8) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m512bh wv = load_bf16(w + 16 * (k + 2 * j));
            for (int m = 0; m < M; m++)
                acc[m][j % S] = dot(acc[m][j % S], wv, broadcast_pair(x + m * K + k + 2 * j));
        }
    }
    for (; k < K; k += 2)
        for (int m = 0; m < M; m++)
            acc[m][0] = dot(acc[m][0], load_bf16(w + 16 * k), broadcast_pair(x + m * K + k));
    for (int m = 0; m < M; m++) store_masked(y + m * N, rows, gathered(acc[m], S));
}

INLINE void int8_tile(bf16 *y, const bf16 *x, const int8_t *w, const bf16 *scales, int64_t N,
                      int64_t K, __mmask16 rows, const int M) {
    const int S = NUM_CHAINS(M);
    __m512 acc[MAX_ROWS];
    for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
    for (int64_t g = 0; g < K / GROUP; g++) {
        __m512 part[MAX_ROWS][4];
        for (int m = 0; m < M; m++)
            for (int j = 0; j < S; j++) part[m][j] = _mm512_setzero_ps();
#pragma GCC unroll 16
        for (int b = 0; b < GROUP / 2; b++) {
            const __m128i *q = (const __m128i *)(w + (g * (GROUP / 2) + b) * 32);
            const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(q)));
            const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(q + 1)));
            const __m512bh wv = _mm512_cvtne2ps_pbh(high, low);
            for (int m = 0; m < M; m++)
                part[m][b % S] =
                    dot(part[m][b % S], wv, broadcast_pair(x + m * K + g * GROUP + 2 * b));
        }
        const __m512 scale = widen16(scales + g * 16);
        for (int m = 0; m < M; m++) acc[m] = _mm512_fmadd_ps(gathered(part[m], S), scale, acc[m]);
    }
    for (int m = 0; m < M; m++) store_masked(y + m * N, rows, acc[m]);
}

INLINE void int4_tile(bf16 *y, const bf16 *x, const uint16_t *w, const bf16 *scales, int64_t N,
                      int64_t K, __mmask16 rows, __m512i values, const int M) {
    const int S = NUM_CHAINS(M);
    __m512 acc[MAX_ROWS];
    for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
    for (int64_t g = 0; g < K / GROUP; g++) {
        __m512 part[MAX_ROWS][4];
        for (int m = 0; m < M; m++)
            for (int j = 0; j < S; j++) part[m][j] = _mm512_setzero_ps();
#pragma GCC unroll 4
        for (int b = 0; b < GROUP / 8; b++) {
            const __m512i q = _mm512_loadu_si512(w + (g * (GROUP / 8) + b) * 32);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                /* The table has every value twice, so the bit above the nibble does not matter. */
                const __m512i nibbles = _mm512_srli_epi16(q, 4 * j);
                const __m512bh wv = (__m512bh)_mm512_permutexvar_epi16(nibbles, values);
                for (int m = 0; m < M; m++)
                    part[m][j % S] = dot(part[m][j % S], wv,
                                         broadcast_pair(x + m * K + g * GROUP + 8 * b + 2 * j));
            }
        }
        const __m512 scale = widen16(scales + g * 16);
        for (int m = 0; m < M; m++) acc[m] = _mm512_fmadd_ps(gathered(part[m], S), scale, acc[m]);
    }
    for (int m = 0; m < M; m++) store_masked(y + m * N, rows, acc[m]);
}

#define FOR_ROWS(M, TILE)    \
    switch (M) {             \
    default: TILE(8) break;  \
    case 7: TILE(7) break;   \
    case 6: TILE(6) break;   \
    case 5: TILE(5) break;   \
    case 4: TILE(4) break;   \
    case 3: TILE(3) break;   \
    case 2: TILE(2) break;   \
    case 1: TILE(1) break;   \
    }

/* y [M, N] = x [M, K] times the packed weight; num_threads of OpenMP share the panels. */
void linear_bf16(bf16 *y, const bf16 *x, const bf16 *w, int64_t M, int64_t N, int64_t K,
                 int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t n = 0; n < N; n += 16)
        for (int64_t m = 0; m < M; m += MAX_ROWS) {
#define TILE(C) bf16_tile(y + m * N + n, x + m * K, w + n * K, N, K, first_lanes(N - n), C);
            FOR_ROWS(M - m, TILE)
#undef TILE
        }
}

void linear_int8(bf16 *y, const bf16 *x, const int8_t *w, const bf16 *scales, int64_t M, int64_t N,
                 int64_t K, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t n = 0; n < N; n += 16)
        for (int64_t m = 0; m < M; m += MAX_ROWS) {
#define TILE(C)                                                                       \
    int8_tile(y + m * N + n, x + m * K, w + n * K, scales + n * (K / GROUP), N, K,    \
              first_lanes(N - n), C);
            FOR_ROWS(M - m, TILE)
#undef TILE
        }
}

void linear_int4(bf16 *y, const bf16 *x, const uint16_t *w, const bf16 *scales, int64_t M, int64_t N,
                 int64_t K, int num_threads) {
    /* -8 ... 7 in bf16, twice. */
    static const bf16 table[32] = {
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
        0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
        0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
    };
    const __m512i values = _mm512_loadu_si512(table);
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t n = 0; n < N; n += 16)
        for (int64_t m = 0; m < M; m += MAX_ROWS) {
#define TILE(C)                                                                           \
    int4_tile(y + m * N + n, x + m * K, w + n * K / 4, scales + n * (K / GROUP), N, K,    \
              first_lanes(N - n), values, C);
            FOR_ROWS(M - m, TILE)
#undef TILE
        }
}
