/* Vectors for all kernels: bf16 in memory, float32 in registers, 512 bits at a time. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;

#define INLINE static inline __attribute__((always_inline))

INLINE __m512bh load_bf16(const bf16 *p) { return (__m512bh)_mm512_loadu_si512(p); }

/* Returns the pair p[0], p[1] in every lane, the form of VDPBF16PS's second operand. */
INLINE __m512bh broadcast_pair(const bf16 *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Returns acc[i] + a[2i] b[2i] + a[2i+1] b[2i+1]: products are exact, sums are float32. */
INLINE __m512 dot(__m512 acc, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(acc, a, b); }

INLINE __m512 widen16(const bf16 *p) {
    const __m256i raw = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

INLINE __m512 widen_masked(__mmask16 mask, const bf16 *p) {
    const __m256i raw = _mm256_maskz_loadu_epi16(mask, p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

/* Rounds to nearest even, as torch does. VCVTNEPS2BF16 turns subnormal results into zero. */
INLINE void store_masked(bf16 *p, __mmask16 mask, __m512 x) {
    _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

INLINE __m512 round_to_bf16(__m512 x) {
    const __m256i raw = (__m256i)_mm512_cvtneps_pbh(x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

/* Returns the mask of the first n of 16 lanes; of all lanes if n is 16 or more. */
INLINE __mmask16 first_lanes(int64_t n) {
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

/* Returns e^x within 2 ulp: 2^n times a polynomial (least squares of the relative error) for the
 * fraction, which is taken from the exact product with log2(e).
 * Below -87 the result is e^-87, from 89 on it is infinity. NaN stays NaN: min and max return their
 * second operand if one is NaN. */
INLINE __m512 exp16(__m512 x) {
    const __m512 log2e = _mm512_set1_ps(1.44269504f), rest = _mm512_set1_ps(1.9259630e-8f);
    const __m512 held = _mm512_min_ps(_mm512_set1_ps(89.f), _mm512_max_ps(_mm512_set1_ps(-87.f), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(held, log2e), 0);
    const __m512 f = _mm512_fmadd_ps(held, rest, _mm512_fmsub_ps(held, log2e, n));
    __m512 p = _mm512_set1_ps(1.53707048e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.33998483e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61837325e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55032904e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226485e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147206e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
    return _mm512_scalef_ps(p, n);
}

/* Working memory of a thread, kept from call to call: fresh pages would take longer than the
 * arithmetic. */
typedef struct {
    void *at;
    size_t size;
} Scratch;

/* Returns at least `needed` bytes with undefined contents, or NULL if there is no memory. */
INLINE void *reserve(Scratch *scratch, size_t needed) {
    if (needed > scratch->size) {
        free(scratch->at);
        scratch->size = (needed + 63) / 64 * 64;
        scratch->at = aligned_alloc(64, scratch->size);
        if (!scratch->at) scratch->size = 0;
    }
    return scratch->at;
}

/* With fewer elements, waking up a thread takes longer than its share of the work. */
enum { ELEMENTS_PER_THREAD = 1 << 15 };

INLINE int threads_for(int64_t num_elements, int num_threads) {
    const int64_t useful = num_elements / ELEMENTS_PER_THREAD;
    return useful < 1 ? 1 : useful < num_threads ? (int)useful : num_threads;
}
