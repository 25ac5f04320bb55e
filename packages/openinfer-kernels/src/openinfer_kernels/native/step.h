/* One attention step over a paged bf16 cache, for decode.c and prefill.c. Blocks are read in
 * place. */
#pragma once

#include "common.h"

typedef struct {
    bf16 *out;                       /* [num_tokens, num_heads, head_dim] */
    const bf16 *q;                   /* [num_tokens, num_heads, head_dim], tokens q_stride apart */
    const bf16 *k, *v;               /* [block][block_size, num_kv_heads, head_dim] */
    const int32_t *cu_seqlens_q;     /* [num_seqs + 1] */
    const int32_t *seq_lens;         /* [num_seqs] */
    const int32_t *block_table;      /* [num_seqs, max_blocks], rows table_stride apart */
    int64_t q_stride, block_stride, table_stride;
    int64_t num_seqs, num_heads, num_kv_heads, head_dim, block_size;
    float scale;
    int num_threads;
} Step;

INLINE int64_t num_queries(const Step *a, int64_t seq) {
    return a->cu_seqlens_q[seq + 1] - a->cu_seqlens_q[seq];
}

/* Offset of token t of a sequence from a->k or a->v. */
INLINE int64_t cache_offset(const Step *a, const int32_t *blocks, int64_t t) {
    return blocks[t / a->block_size] * a->block_stride +
           t % a->block_size * a->num_kv_heads * a->head_dim;
}
