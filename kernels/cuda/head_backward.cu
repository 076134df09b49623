// One block a row: logits become the gradient of the loss with respect to them, in place. A row is a run of one flat array:
// a whole vocabulary, or the logits of the ids a token was drawn from. The loss is that of every (w, c):
//
//   loss     = -A [ w log p_a - sum_v c_v log p_v ]          p_v = exp(z_v / T - lse)
//   dloss/dz = -(A/T) [ w e_a - c - (w - sum_v c_v) p ]
//
// c is given at the known places; at the others of a row with a tail it is  scale p_s clip(p / p_s, low, high),  p_s from the
// logits of the weights that sampled. The products with the head are not here: `G W` and `G^T h` are cuBLAS's.
// `losses` gets the loss of every row. Sums run in a fixed order, so two runs give the same bits.
#include "head.cuh"

// c of a place that is not known.
static __device__ __forceinline__ double tail_c(const HeadRow& r, float z, float z_s) {
    const double log_s = (double)z_s * r.inv_t - r.lse_s, gap = (double)z * r.inv_t - r.lse - log_s;
    const float p_s = exp_f32(log_s);
    if (p_s == 0.0f) return 0.0;
    double ratio = exp_f32(gap);
    ratio = ratio > r.high ? r.high : ratio;
    return r.scale * (double)p_s * (ratio < r.low ? r.low : ratio);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
head_backward(float* logits, const float* sampler, const HeadRow* __restrict__ rows, const u32* __restrict__ places,
              const double* __restrict__ c, double* __restrict__ losses) {
    __shared__ u32 known[MOST / 32];
    __shared__ double shared[WARPS];
    const HeadRow r = rows[blockIdx.x];
    float* z = logits + r.start;
    const bool tail = sampler && r.scale != 0.0;
    const float* z_s = tail ? sampler + r.start : nullptr;
    mark(known, r, places);
    double sum = 0.0, centring = 0.0;
    for (u32 i = r.known + threadIdx.x; i < r.known_end; i += THREADS) {
        sum += c[i];
        centring += c[i] == 0.0 ? 0.0 : c[i] * ((double)z[places[i]] * r.inv_t - r.lse);
    }
    for (u32 v = threadIdx.x; tail && v < r.len; v += THREADS) {
        const double here = marked(known, v) ? 0.0 : tail_c(r, z[v], z_s[v]);
        sum += here;
        centring += here == 0.0 ? 0.0 : here * ((double)z[v] * r.inv_t - r.lse);
    }
    const double beta = r.w - block_sum_f64(sum, shared), centred = block_sum_f64(centring, shared);
    if (threadIdx.x == 0) losses[blockIdx.x] = r.factor / r.inv_t * (r.w * ((double)z[r.sampled] * r.inv_t - r.lse) - centred);
    __syncthreads();
    for (u32 v = threadIdx.x; v < r.len; v += THREADS) {
        if (marked(known, v)) continue;
        const double here = tail ? tail_c(r, z[v], z_s[v]) : 0.0, drawn = v == r.sampled ? r.w : 0.0;
        z[v] = (float)(-r.factor * (here + beta * (double)exp_f32((double)z[v] * r.inv_t - r.lse) - drawn));
    }
    for (u32 i = r.known + threadIdx.x; i < r.known_end; i += THREADS) {
        const u32 v = places[i];
        const double drawn = v == r.sampled ? r.w : 0.0;
        z[v] = (float)(-r.factor * (c[i] + beta * exp((double)z[v] * r.inv_t - r.lse) - drawn));
    }
}
