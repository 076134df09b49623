// What the kernels of the head share: rows of logits, and the marks of their known places.
#pragma once
#include "block.cuh"

// Longest row; `MAX_ROW` of `src/mass.rs`.
#define MOST (1 << 18)

struct HeadRow {
    u64 start;                // of the row in the flat arrays
    u32 len, sampled;         // entries of the row; place of the drawn token
    u32 known, known_end;     // run of `places` and `c`
    double lse, lse_s;        // log-sum-exp of z / T, and of the sampler's
    double inv_t, w, factor;  // 1 / T; w; -A / T
    double scale, low, high;  // of the tail; no tail where scale is 0
};
static_assert(sizeof(HeadRow) == 88, "src/cuda/layout.rs has the same");

static __device__ __forceinline__ bool marked(const u32* known, u32 v) { return known[v >> 5] >> (v & 31) & 1; }

// Marks the known places of a row.
static __device__ __forceinline__ void mark(u32* known, const HeadRow& r, const u32* places) {
    for (u32 i = threadIdx.x; i < (r.len + 31) / 32; i += THREADS) known[i] = 0;
    __syncthreads();
    for (u32 i = r.known + threadIdx.x; i < r.known_end; i += THREADS) atomicOr(&known[places[i] >> 5], 1u << (places[i] & 31));
    __syncthreads();
}
