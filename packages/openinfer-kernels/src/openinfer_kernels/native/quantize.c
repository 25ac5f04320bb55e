/* Quantization of weights to 8 and 4 bits, packed in the order of linear.c. The values are
 * defined in ops/linear/_quantize.py. Rows past N are zeros. */
#include "common.h"

enum { GROUP = 32, NUM_SCALE_FACTORS = 5 };

static const float scale_factors[NUM_SCALE_FACTORS] = {1.0f, 0.94f, 0.88f, 0.82f, 0.76f};

typedef struct {
    __m512 low, high; /* columns 0 to 15 and 16 to 31 */
} Group;

INLINE float as_bf16(float x) { return _mm512_cvtss_f32(round_to_bf16(_mm512_set1_ps(x))); }

INLINE __m512 quantized(__m512 x, float inverse, float least, float most) {
    const __m512 q = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(inverse)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_min_ps(_mm512_max_ps(q, _mm512_set1_ps(least)), _mm512_set1_ps(most));
}

INLINE Group quantized_group(Group w, float scale, float least, float most) {
    const float inverse = scale == 0.f ? 0.f : 1.f / scale;
    return (Group){quantized(w.low, inverse, least, most), quantized(w.high, inverse, least, most)};
}

/* Sums in halves, as ops/linear/_quantize.py does: close to a tie, the choice of a scale depends on
 * the order of the sum. */
INLINE float squared_error(Group w, Group q, float scale) {
    const __m512 s = _mm512_set1_ps(scale);
    const __m512 low = _mm512_sub_ps(_mm512_mul_ps(q.low, s), w.low);
    const __m512 high = _mm512_sub_ps(_mm512_mul_ps(q.high, s), w.high);
    return _mm512_reduce_add_ps(
        _mm512_add_ps(_mm512_mul_ps(low, low), _mm512_mul_ps(high, high)));
}

/* Returns the value of largest magnitude, with its sign. */
INLINE float largest_magnitude(Group w) {
    const float most = fmaxf(_mm512_reduce_max_ps(w.low), _mm512_reduce_max_ps(w.high));
    const float least = fminf(_mm512_reduce_min_ps(w.low), _mm512_reduce_min_ps(w.high));
    return -least > most ? least : most;
}

INLINE float int4_scale(Group w) {
    const float largest = largest_magnitude(w);
    float best = 0.f, best_error = INFINITY;
    for (int i = 0; i < NUM_SCALE_FACTORS; i++) {
        const float scale = as_bf16(largest * (scale_factors[i] / -8.f));
        const float error = squared_error(w, quantized_group(w, scale, -8.f, 7.f), scale);
        if (error < best_error) {
            best = scale;
            best_error = error;
        }
    }
    return best;
}

INLINE void store_quantized(int8_t *q, Group group) {
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(group.low)));
    _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(group.high)));
}

INLINE void quantize_panel(void *packed, bf16 *scales, const bf16 *weight, int64_t num_rows,
                           int64_t K, const int bits) {
    memset(packed, 0, 16 * K * bits / 8);
    for (int64_t row = 0; row < 16; row++)
        for (int64_t g = 0; g < K / GROUP; g++) {
            Group w = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            if (row < num_rows) {
                w.low = widen16(weight + row * K + g * GROUP);
                w.high = widen16(weight + row * K + g * GROUP + 16);
            }
            const float scale =
                bits == 8 ? as_bf16(fabsf(largest_magnitude(w)) / 127.f) : int4_scale(w);
            int8_t q[GROUP];
            store_quantized(q, bits == 8 ? quantized_group(w, scale, -127.f, 127.f)
                                 : quantized_group(w, scale, -8.f, 7.f));
            store_masked(scales + g * 16 + row, 1, _mm512_set1_ps(scale));
            for (int64_t c = 0; c < GROUP; c++) {
                const int64_t k = g * GROUP + c;
                if (bits == 8)
                    ((int8_t *)packed)[(k / 2 * 16 + row) * 2 + k % 2] = q[c];
                else
                    ((uint16_t *)packed)[(k / 8 * 16 + row) * 2 + k % 2] |=
                        (uint16_t)((q[c] + 8) << (k % 8 / 2 * 4));
            }
        }
}

void quantize_int8(int8_t *packed, bf16 *scales, const bf16 *weight, int64_t N, int64_t K,
                   int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t n = 0; n < N; n += 16)
        quantize_panel(packed + n * K, scales + n * (K / GROUP), weight + n * K, N - n, K, 8);
}

void quantize_int4(uint16_t *packed, bf16 *scales, const bf16 *weight, int64_t N, int64_t K,
                   int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t n = 0; n < N; n += 16)
        quantize_panel(packed + n * K / 4, scales + n * (K / GROUP), weight + n * K, N - n, K, 4);
}
