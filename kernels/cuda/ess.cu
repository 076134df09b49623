// Statistics of log ratios: one block a piece of PIECE entries, whose sums the caller adds in the order of the pieces. Ratios
// are taken relative to the largest of their piece, so none overflows.
//
//   sum = sum_i exp(x_i - max)    squares = sum_i exp(2 (x_i - max))    k1 = -sum_i x_i    k3 = sum_i (exp(x_i) - 1 - x_i)
#include "block.cuh"

#define PIECE 4096

struct RatioSums {
    double max, sum, squares, k1, k3;
    u32 clipped, bad;
};
static_assert(sizeof(RatioSums) == 48, "src/cuda/layout.rs has the same");

// exp in f64, of fused multiply-adds alone up to its scaling: what is left below 2^-44 of 1 counts as nothing.
static __device__ __forceinline__ double relative(double gap) { return (double)mass(gap) / (double)ONE_MASS; }

extern "C" __global__ void __launch_bounds__(THREADS)
ratio_sums(const double* __restrict__ log_ratios, u64 n, double log_low, double log_high, RatioSums* __restrict__ sums) {
    __shared__ double shared[WARPS];
    __shared__ u64 counts[WARPS];
    const u64 first = (u64)blockIdx.x * PIECE, end = first + PIECE < n ? first + PIECE : n;
    double max = -1.7976931348623157e308;
    u64 bad = 0, clipped = 0;
    for (u64 i = first + threadIdx.x; i < end; i += THREADS) {
        const double x = log_ratios[i];
        bad += !(x - x == 0.0);
        clipped += x > log_high || x < log_low;
        max = x > max ? x : max;
    }
    for (int d = 16; d; d >>= 1) {
        const double other = __shfl_xor_sync(ALL, max, d);
        max = other > max ? other : max;
    }
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = max;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) max = shared[w] > max ? shared[w] : max;
    __syncthreads();
    double sum = 0.0, squares = 0.0, k1 = 0.0, k3 = 0.0;
    for (u64 i = first + threadIdx.x; i < end; i += THREADS) {
        const double x = log_ratios[i], r = relative(x - max);
        sum += r, squares += r * r, k1 -= x, k3 += exp(x) - 1.0 - x;
    }
    sum = block_sum_f64(sum, shared), squares = block_sum_f64(squares, shared);
    k1 = block_sum_f64(k1, shared), k3 = block_sum_f64(k3, shared);
    bad = block_sum(bad, counts), clipped = block_sum(clipped, counts);
    if (threadIdx.x == 0) sums[blockIdx.x] = {max, sum, squares, k1, k3, (u32)clipped, (u32)bad};
}

// One warp a sequence: the sum of the log ratios of its tokens, `offsets [sequences + 1]`.
extern "C" __global__ void __launch_bounds__(THREADS)
sequence_log_ratios(const double* __restrict__ log_ratios, const u32* __restrict__ offsets, u32 sequences,
                    double* __restrict__ out) {
    const u32 s = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (s >= sequences) return;
    double sum = 0.0;
    for (u32 i = offsets[s] + (threadIdx.x & 31); i < offsets[s + 1]; i += 32) sum += log_ratios[i];
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(ALL, sum, d);
    if ((threadIdx.x & 31) == 0) out[s] = sum;
}
