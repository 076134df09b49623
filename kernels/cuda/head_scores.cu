// One block a row: what a position's log-probabilities come to, under the weights now and, where there are any, those that
// sampled. Rows are runs of a flat array, as in head_backward.cu; p_v = exp(z_v / T - lse).
//
//   lse = ln sum_v exp(z_v / T)    entropy = -sum_v p_v log p_v    rest = sum_{v not known} p_v    kl = sum_v p_s,v log(p_s,v / p_v)
//
// The sums behind an lse are integers; the others run in f64 in a fixed order. Two runs give the same bits.
#include "head.cuh"

struct HeadScores {
    double lse, entropy, rest, drawn;          // drawn: log p of the sampled place
    double lse_s, entropy_s, rest_s, drawn_s;  // the same of the sampler; NaN where a row has none
    double kl;
    u32 status, status_s;
};
static_assert(sizeof(HeadScores) == 80, "src/cuda/layout.rs has the same");

static __device__ __forceinline__ double row_lse(const float* z, u32 len, double inv_t, u64* shared, u32* status) {
    const double max = largest(z, (int)len, shared, status);
    u64 total = 0;
    for (u32 v = threadIdx.x; *status == OK && v < len; v += THREADS) total += mass(((double)z[v] - max) * inv_t);
    total = block_sum(total, shared);
    return *status == OK ? max * inv_t + log((double)total / (double)ONE_MASS) : 0.0;
}

// Entropy and rest of one side.
static __device__ __forceinline__ void side_sums(const float* z, const HeadRow& r, double lse, const u32* known,
                                                 double* shared, double* entropy, double* rest) {
    double h = 0.0, mass_left = 0.0;
    for (u32 v = threadIdx.x; v < r.len; v += THREADS) {
        const double log_p = (double)z[v] * r.inv_t - lse, p = exp_f32(log_p);
        h -= p == 0.0 ? 0.0 : p * log_p;
        mass_left += marked(known, v) ? 0.0 : p;
    }
    *entropy = block_sum_f64(h, shared), *rest = block_sum_f64(mass_left, shared);
}

// `log_p` and `log_s` get the log-probabilities of the known places, in their order.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
head_scores(const float* __restrict__ logits, const float* __restrict__ sampler, const HeadRow* __restrict__ rows,
            const u32* __restrict__ places, double* __restrict__ log_p, double* __restrict__ log_s,
            HeadScores* __restrict__ scores) {
    __shared__ u32 known[MOST / 32];
    __shared__ u64 counts[WARPS];
    __shared__ double shared[WARPS];
    const HeadRow r = rows[blockIdx.x];
    const double none = __longlong_as_double(0x7ff8000000000000ll);
    HeadScores s = {0.0, 0.0, 0.0, 0.0, none, none, none, none, none, OK, OK};
    const float *z = logits + r.start, *z_s = sampler ? sampler + r.start : nullptr;
    mark(known, r, places);
    s.lse = row_lse(z, r.len, r.inv_t, counts, &s.status);
    if (z_s) s.lse_s = row_lse(z_s, r.len, r.inv_t, counts, &s.status_s);
    if (s.status == OK && s.status_s == OK) {
        side_sums(z, r, s.lse, known, shared, &s.entropy, &s.rest);
        s.drawn = (double)z[r.sampled] * r.inv_t - s.lse;
        for (u32 i = r.known + threadIdx.x; i < r.known_end; i += THREADS) log_p[i] = (double)z[places[i]] * r.inv_t - s.lse;
        if (z_s) {
            side_sums(z_s, r, s.lse_s, known, shared, &s.entropy_s, &s.rest_s);
            s.drawn_s = (double)z_s[r.sampled] * r.inv_t - s.lse_s;
            double kl = 0.0;
            for (u32 v = threadIdx.x; v < r.len; v += THREADS) {
                const double from = (double)z_s[v] * r.inv_t - s.lse_s, p_s = exp_f32(from);
                kl += p_s == 0.0 ? 0.0 : p_s * (from - ((double)z[v] * r.inv_t - s.lse));
            }
            s.kl = block_sum_f64(kl, shared);
            for (u32 i = r.known + threadIdx.x; i < r.known_end; i += THREADS)
                log_s[i] = (double)z_s[places[i]] * r.inv_t - s.lse_s;
        }
    }
    if (threadIdx.x == 0) scores[blockIdx.x] = s;
}
