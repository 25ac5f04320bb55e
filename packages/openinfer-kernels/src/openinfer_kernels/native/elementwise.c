/* Norms, rotation, activation and the cache write on bf16: one call each where an operator library
 * needs ten, which is what a step of one token pays for. Arithmetic is float32. */
#include "rows.h"

/* x [num_rows, num_heads, size] with strides, the last dimension contiguous; y contiguous. */
void rms_norm(bf16 *y, const bf16 *x, const bf16 *weight, int64_t num_rows, int64_t num_heads,
              int64_t row_stride, int64_t head_stride, int64_t size, float eps, int num_threads) {
    const int threads = threads_for(num_rows * num_heads * size, num_threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t head = 0; head < num_heads; head++)
            normalise(y + (row * num_heads + head) * size,
                      x + row * row_stride + head * head_stride, weight, size, eps);
}

/* q [num_tokens, num_heads, D] and k likewise, tokens q_stride and k_stride apart; outputs contiguous;
 * cos_sin [max_positions, D], the cosines first.
 * Returns num_tokens, or the first token whose position is beyond the table: then nothing is done. */
int64_t rope(bf16 *q_out, bf16 *k_out, const bf16 *q, const bf16 *k, const float *cos_sin,
          const int64_t *positions, int64_t max_positions, int64_t num_tokens, int64_t num_heads,
          int64_t num_kv_heads, int64_t head_dim, int64_t q_stride, int64_t k_stride, int num_threads) {
    const int64_t bad = first_beyond(positions, num_tokens, max_positions);
    if (bad < num_tokens) return bad;
    const int threads =
        threads_for(num_tokens * (num_heads + num_kv_heads) * head_dim, num_threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < num_tokens; t++) {
        const float *angles = cos_sin + positions[t] * head_dim;
        for (int64_t h = 0; h < num_heads; h++)
            rotate(q_out + (t * num_heads + h) * head_dim, q + t * q_stride + h * head_dim, angles,
                   head_dim / 2);
        for (int64_t h = 0; h < num_kv_heads; h++)
            rotate(k_out + (t * num_kv_heads + h) * head_dim, k + t * k_stride + h * head_dim,
                   angles, head_dim / 2);
    }
    return num_tokens;
}

/* gate_up [num_tokens, 2 * size] to silu(gate) * up [num_tokens, size]. */
void silu_and_mul(bf16 *y, const bf16 *gate_up, int64_t num_tokens, int64_t size,
                  int num_threads) {
    const int threads = threads_for(num_tokens * size, num_threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < num_tokens; t++)
        for (int64_t i = 0; i < size; i += 16) {
            const __mmask16 mask = first_lanes(size - i);
            const __m512 gate = widen_masked(mask, gate_up + t * 2 * size + i);
            const __m512 up = widen_masked(mask, gate_up + t * 2 * size + size + i);
            store_masked(y + t * size + i, mask, gated(gate, up));
        }
}

/* Rows of k and v, strides and width in bytes, to their slots in the cache.
 * Returns num_tokens, or the first token whose slot is beyond the cache: then nothing is written. */
int64_t store_kv(const char *k, const char *v, char *k_cache, char *v_cache, const int64_t *slots,
              int64_t num_tokens, int64_t width, int64_t k_stride, int64_t v_stride,
              int64_t block_stride, int64_t block_size, int64_t num_blocks) {
    const int64_t bad = first_beyond(slots, num_tokens, num_blocks * block_size);
    if (bad < num_tokens) return bad;
    for (int64_t t = 0; t < num_tokens; t++) {
        const int64_t at =
            slots[t] / block_size * block_stride + slots[t] % block_size * width;
        memcpy(k_cache + at, k + t * k_stride, width);
        memcpy(v_cache + at, v + t * v_stride, width);
    }
    return num_tokens;
}
