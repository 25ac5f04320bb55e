/* Norms, rotation, activation and the cache write on bf16, one call each. torch's operators need
 * up to ten calls for one of them, and a step of one token pays for the calls. Arithmetic is
 * float32. */
#include "rows.h"

/* x is [num_rows, num_heads, size] with strides, its last dimension contiguous; y is contiguous. */
void rms_norm(bf16 *y, const bf16 *x, const bf16 *weight, int64_t num_rows, int64_t num_heads,
              int64_t row_stride, int64_t head_stride, int64_t size, float eps, int num_threads) {
    const int threads = threads_for(num_rows * num_heads * size, num_threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t head = 0; head < num_heads; head++)
            rms_normalise(y + (row * num_heads + head) * size,
                      x + row * row_stride + head * head_stride, weight, size, eps);
}

/* q is [num_tokens, num_heads, head_dim] and k [num_tokens, num_kv_heads, head_dim]; their tokens
 * are q_stride and k_stride apart, the outputs are contiguous. cos_sin is [max_positions,
 * head_dim]: in a row the cosines, then the sines. Returns num_tokens. If a position is out of
 * range, returns the first such token and does nothing. */
int64_t rope(bf16 *q_out, bf16 *k_out, const bf16 *q, const bf16 *k, const float *cos_sin,
          const int64_t *positions, int64_t max_positions, int64_t num_tokens, int64_t num_heads,
          int64_t num_kv_heads, int64_t head_dim, int64_t q_stride, int64_t k_stride, int num_threads) {
    const int64_t bad = first_out_of_range(positions, num_tokens, max_positions);
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

/* Computes y = silu(gate) * up, [num_tokens, size], from gate_up, [num_tokens, 2 * size]. */
void silu_and_mul(bf16 *y, const bf16 *gate_up, int64_t num_tokens, int64_t size,
                  int num_threads) {
    const int threads = threads_for(num_tokens * size, num_threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < num_tokens; t++)
        for (int64_t i = 0; i < size; i += 16) {
            const __mmask16 mask = first_lanes(size - i);
            const __m512 gate = widen_masked(mask, gate_up + t * 2 * size + i);
            const __m512 up = widen_masked(mask, gate_up + t * 2 * size + size + i);
            store_masked(y + t * size + i, mask, silu_mul(gate, up));
        }
}

/* Copies rows of k and v to their slots in the cache. Strides and width are in bytes. Returns
 * num_tokens. If a slot is out of range, returns the first such token and writes nothing. */
int64_t store_kv(const char *k, const char *v, char *k_cache, char *v_cache, const int64_t *slots,
              int64_t num_tokens, int64_t width, int64_t k_stride, int64_t v_stride,
              int64_t block_stride, int64_t block_size, int64_t num_blocks) {
    const int64_t bad = first_out_of_range(slots, num_tokens, num_blocks * block_size);
    if (bad < num_tokens) return bad;
    for (int64_t t = 0; t < num_tokens; t++) {
        const int64_t at =
            slots[t] / block_size * block_stride + slots[t] % block_size * width;
        memcpy(k_cache + at, k + t * k_stride, width);
        memcpy(v_cache + at, v + t * v_stride, width);
    }
    return num_tokens;
}
