/* What decode and prefill attention share: a step over a paged bf16 cache, blocks where they lie. */
#pragma once

#include "common.h"

typedef struct {
    bf16 *out;                       /* [num_tokens, num_heads, head_dim] */
    const bf16 *q;                   /* the same, tokens q_stride apart */
    const bf16 *k, *v;               /* [block][block_size, num_kv_heads, head_dim] */
    const int32_t *cu_seqlens_q;     /* [num_seqs + 1] */
    const int32_t *seq_lens;         /* [num_seqs] */
    const int32_t *block_table;      /* [num_seqs], table_stride apart */
    int64_t q_stride, block_stride, table_stride;
    int64_t num_seqs, num_heads, num_kv_heads, head_dim, block_size;
    float scale;
    int num_threads;
} Step;

INLINE int64_t num_queries(const Step *a, int64_t seq) {
    return a->cu_seqlens_q[seq + 1] - a->cu_seqlens_q[seq];
}

/* Where the cache has token t of a sequence, from a's k or v on. */
INLINE int64_t place(const Step *a, const int32_t *blocks, int64_t t) {
    return blocks[t / a->block_size] * a->block_stride +
           t % a->block_size * a->num_kv_heads * a->head_dim;
}

/* Sequences of one query, and those of several; rows of the others are left alone.
 * Return 0, or 1 if there is no memory for partial results. */
int attend_decodes(const Step *a);
int attend_prefills(const Step *a);
