// One block a row of f32 logits [rows, V]: log-probabilities of listed ids, the row's log-sum-exp and entropy.
//
//   log p_a = x_a / T - ln sum_v exp(x_v / T)        H = -sum_v p_v log p_v        v over the row, or over the listed ids
//
// The definition is `src/rows.rs`. Ids come as offsets [rows + 1] and one list. Sums are integers of 2^-44 (the entropy's
// terms as well), so two runs give the same bits.
#include "block.cuh"

struct RowSums {
    double log_sum_exp, entropy;
    u32 status, unused;
};
static_assert(sizeof(RowSums) == 24, "src/cuda/layout.rs has the same");

extern "C" __global__ void __launch_bounds__(THREADS, 4)
row_log_probs(const float* __restrict__ logits, int V, const u32* __restrict__ offsets, const u32* __restrict__ ids,
              double inv_t, int over_listed, double* __restrict__ log_p, RowSums* __restrict__ sums) {
    __shared__ u64 shared[WARPS];
    const float* row = logits + (size_t)blockIdx.x * V;
    const u32 first = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
    const Entries over = {row, over_listed ? ids + first : nullptr, over_listed ? (int)(end - first) : V};
    RowSums r = {0.0, 0.0, OK, 0};
    const double max = largest(over, shared, &r.status);
    u64 total = 0, weighted = 0;
    for (int i = threadIdx.x; r.status == OK && i < over.n; i += THREADS) {
        const double gap = ((double)entry(over, i) - max) * inv_t;
        const u64 m = mass(gap);
        total += m;
        // gap exp(-gap) is at most 0.37, so the sum fits as the masses do; without mass a gap, perhaps infinite, counts nothing.
        weighted += m ? (u64)(-gap * (double)m + 0.5) : 0;
    }
    total = block_sum(total, shared), weighted = block_sum(weighted, shared);
    if (r.status == OK) {
        const double log_total = log((double)total / (double)ONE_MASS);
        r.log_sum_exp = max * inv_t + log_total;
        r.entropy = log_total + (double)weighted / (double)total;
        for (u32 i = first + threadIdx.x; i < end; i += THREADS) log_p[i] = ((double)row[ids[i]] - max) * inv_t - log_total;
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = r;
}
