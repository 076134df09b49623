// The head over listed ids alone: entries e = (row of the hidden states, row of the head), f32, W [V, H], h [N, H].
//
//   z_e = h_row . W_id          dh_row = sum_e g_e W_id          dW_id += sum_e g_e h_row
//
// Every sum runs in the order of its entries, so two runs give the same bits.
#include "block.cuh"

// One warp an entry.
extern "C" __global__ void __launch_bounds__(THREADS)
listed_logits(const float* __restrict__ hidden, const float* __restrict__ head, int H, const u32* __restrict__ rows,
              const u32* __restrict__ ids, u32 n, float* __restrict__ logits) {
    const u32 e = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (e >= n) return;
    const float *h = hidden + (size_t)rows[e] * H, *w = head + (size_t)ids[e] * H;
    float sum = 0.0f;
    for (int i = threadIdx.x & 31; i < H; i += 32) sum = __fmaf_rn(h[i], w[i], sum);
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(ALL, sum, d);
    if ((threadIdx.x & 31) == 0) logits[e] = sum;
}

// One block a run of entries `starts[b] .. starts[b + 1]` that share their row of `sums`, `into[b]`; adds to it.
// With (from, of) = (head, ids) it makes dh, with (hidden, rows) dW.
extern "C" __global__ void __launch_bounds__(THREADS)
listed_sums(const float* __restrict__ from, int H, const u32* __restrict__ starts, const u32* __restrict__ into,
            const u32* __restrict__ of, const float* __restrict__ gradients, float* __restrict__ sums) {
    const u32 first = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    float* out = sums + (size_t)into[blockIdx.x] * H;
    for (int i = threadIdx.x; i < H; i += THREADS) {
        float sum = out[i];
        for (u32 e = first; e < end; e++) sum = __fmaf_rn(gradients[e], from[(size_t)of[e] * H + i], sum);
        out[i] = sum;
    }
}
