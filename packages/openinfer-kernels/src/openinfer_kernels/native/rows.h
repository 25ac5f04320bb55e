/* Functions of one row: as ops of their own, and as the parts of a product or an attention.
 * Arithmetic is float32. */
#pragma once

#include "common.h"

INLINE void rms_normalise(bf16 *y, const bf16 *x, const bf16 *weight, int64_t size, float eps) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += 16) {
        const __m512 v = widen_masked(first_lanes(size - i), x + i);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    const float mean = _mm512_reduce_add_ps(squares) / (float)size;
    const __m512 inverse = _mm512_set1_ps(1.f / sqrtf(mean + eps));
    for (int64_t i = 0; i < size; i += 16) {
        const __mmask16 mask = first_lanes(size - i);
        const __m512 v = round_to_bf16(_mm512_mul_ps(widen_masked(mask, x + i), inverse));
        store_masked(y + i, mask, _mm512_mul_ps(v, widen_masked(mask, weight + i)));
    }
}

INLINE void rotate(bf16 *y, const bf16 *x, const float *cos_sin, int64_t half) {
    for (int64_t i = 0; i < half; i += 16) {
        const __mmask16 mask = first_lanes(half - i);
        const __m512 cos = _mm512_maskz_loadu_ps(mask, cos_sin + i);
        const __m512 sin = _mm512_maskz_loadu_ps(mask, cos_sin + half + i);
        const __m512 a = widen_masked(mask, x + i), b = widen_masked(mask, x + half + i);
        store_masked(y + i, mask, _mm512_fmsub_ps(a, cos, _mm512_mul_ps(b, sin)));
        store_masked(y + half + i, mask, _mm512_fmadd_ps(b, cos, _mm512_mul_ps(a, sin)));
    }
}

/* Returns the place of the first index that is negative or not below the limit, or num_indices. */
INLINE int64_t first_out_of_range(const int64_t *indices, int64_t num_indices, int64_t limit) {
    int64_t i = 0;
    while (i < num_indices && indices[i] >= 0 && indices[i] < limit) i++;
    return i;
}

INLINE __m512 silu_mul(__m512 gate, __m512 up) {
    const __m512 one = _mm512_set1_ps(1.f), zero = _mm512_setzero_ps();
    const __m512 divisor = _mm512_add_ps(one, exp16(_mm512_sub_ps(zero, gate)));
    return _mm512_mul_ps(_mm512_div_ps(gate, divisor), up);
}
