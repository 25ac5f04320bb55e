/* The two attention ops: paged_attention, and fused_attention with head norms, rotation and cache
 * write before it. */
#include "decode.h"
#include "prefill.h"
#include "rows.h"

/* out and q are [num_tokens, num_heads, head_dim]; the other arguments are described in step.h.
 * Returns 0, or 1 if there is no memory. */
int paged_attention(bf16 *out, const bf16 *q, const bf16 *k, const bf16 *v, int64_t block_stride,
                    const int32_t *cu_seqlens_q, const int32_t *seq_lens,
                    const int32_t *block_table, int64_t table_stride, int64_t num_seqs,
                    int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t block_size,
                    float scale, int num_threads) {
    const Step step = {
        out, q, k, v, cu_seqlens_q, seq_lens, block_table,
        num_heads * head_dim, block_stride, table_stride,
        num_seqs, num_heads, num_kv_heads, head_dim, block_size, scale, num_threads,
    };
    return attend_decodes(&step) || attend_prefills(&step);
}

typedef struct {
    const bf16 *q_norm, *k_norm; /* [head_dim], or NULL */
    const float *cos_sin;        /* [max_positions, head_dim] */
    const int64_t *positions, *slots;
    float eps;
} Rows;

/* Prepares one token of qkv: queries in place, keys and values to their slot in the cache. */
static void store_token(const Step *a, const Rows *rows, bf16 *qkv, bf16 *k, bf16 *v, int64_t t) {
    const int64_t D = a->head_dim, slot = rows->slots[t];
    const float *angles = rows->cos_sin + rows->positions[t] * D;
    const int64_t at = slot / a->block_size * a->block_stride +
                       slot % a->block_size * a->num_kv_heads * D;
    for (int64_t h = 0; h < a->num_heads + a->num_kv_heads; h++) {
        const int is_key = h >= a->num_heads;
        const bf16 *norm = is_key ? rows->k_norm : rows->q_norm;
        bf16 *head = qkv + h * D;
        if (norm) rms_normalise(head, head, norm, D, rows->eps);
        rotate(is_key ? k + at + (h - a->num_heads) * D : head, head, angles, D / 2);
    }
    memcpy(v + at, qkv + (a->num_heads + a->num_kv_heads) * D, a->num_kv_heads * D * sizeof(bf16));
}

enum { DONE, NO_MEMORY, POSITION_OUT_OF_RANGE, SLOT_OUT_OF_RANGE };

/* qkv is [num_tokens, num_heads + 2 * num_kv_heads, head_dim]; it is overwritten.
 * Returns one of the above. If a position or a slot is out of range, nothing is written. */
int fused_attention(bf16 *out, bf16 *qkv, bf16 *k, bf16 *v, int64_t block_stride,
                    const int32_t *cu_seqlens_q, const int32_t *seq_lens,
                    const int32_t *block_table, int64_t table_stride, int64_t num_seqs,
                    int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t block_size,
                    float scale, const bf16 *q_norm, const bf16 *k_norm, float eps,
                    const float *cos_sin, const int64_t *positions, const int64_t *slots,
                    int64_t max_positions, int64_t num_blocks, int64_t num_tokens,
                    int num_threads) {
    const int64_t width = (num_heads + 2 * num_kv_heads) * head_dim;
    const Step step = {
        out, qkv, k, v, cu_seqlens_q, seq_lens, block_table,
        width, block_stride, table_stride,
        num_seqs, num_heads, num_kv_heads, head_dim, block_size, scale, num_threads,
    };
    const Rows rows = {q_norm, k_norm, cos_sin, positions, slots, eps};
    if (first_out_of_range(positions, num_tokens, max_positions) < num_tokens)
        return POSITION_OUT_OF_RANGE;
    if (first_out_of_range(slots, num_tokens, num_blocks * block_size) < num_tokens)
        return SLOT_OUT_OF_RANGE;
    const int threads = threads_for(num_tokens * width, num_threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < num_tokens; t++) store_token(&step, &rows, qkv + t * width, k, v, t);
    return attend_decodes(&step) || attend_prefills(&step) ? NO_MEMORY : DONE;
}
