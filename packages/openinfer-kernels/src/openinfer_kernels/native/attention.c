/* The two attention ops: paged, and fused with head norms, rotation and cache write. */
#include "attention.h"
#include "rows.h"

/* out [num_tokens, num_heads, head_dim], q alike; see attention.h. Returns 0, or 1 if there is no
 * memory for partial results. */
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

/* One token of qkv: queries in place, keys and values to their slot. */
static void store_token(const Step *a, const Rows *rows, bf16 *qkv, bf16 *k, bf16 *v, int64_t t) {
    const int64_t D = a->head_dim, slot = rows->slots[t];
    const float *angles = rows->cos_sin + rows->positions[t] * D;
    const int64_t at = slot / a->block_size * a->block_stride +
                       slot % a->block_size * a->num_kv_heads * D;
    for (int64_t h = 0; h < a->num_heads + a->num_kv_heads; h++) {
        const int is_key = h >= a->num_heads;
        const bf16 *norm = is_key ? rows->k_norm : rows->q_norm;
        bf16 *head = qkv + h * D;
        if (norm) normalise(head, head, norm, D, rows->eps);
        rotate(is_key ? k + at + (h - a->num_heads) * D : head, head, angles, D / 2);
    }
    memcpy(v + at, qkv + (a->num_heads + a->num_kv_heads) * D, a->num_kv_heads * D * sizeof(bf16));
}

enum { DONE, NO_MEMORY, POSITION_BEYOND, SLOT_BEYOND };

/* qkv [num_tokens, num_heads + 2 * num_kv_heads, head_dim]; it is overwritten.
 * Returns one of the above; if an index is beyond its table or cache, nothing is written. */
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
    if (first_beyond(positions, num_tokens, max_positions) < num_tokens) return POSITION_BEYOND;
    if (first_beyond(slots, num_tokens, num_blocks * block_size) < num_tokens) return SLOT_BEYOND;
    const int threads = threads_for(num_tokens * width, num_threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < num_tokens; t++) store_token(&step, &rows, qkv + t * width, k, v, t);
    return attend_decodes(&step) || attend_prefills(&step) ? NO_MEMORY : DONE;
}
