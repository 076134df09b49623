// AdamW in one pass: f32 weights, gradient and moments, and a bf16 copy of the weights where one is wanted. One thread an
// entry. The definition is `src/adamw.rs`, which also makes the constants of a step; every f32 is the same bits.
#include "block.cuh"

// Of one step: what `AdamW::update` computes once.
struct Step {
    float scale, b1, c1, b2, c2, keep, rate, root, eps;
};
static_assert(sizeof(Step) == 36, "src/cuda/layout.rs has the same");

// Round to nearest, ties to even; NaN stays NaN.
static __device__ __forceinline__ unsigned short to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((bits >> 16) | 0x40u);
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

extern "C" __global__ void __launch_bounds__(THREADS)
adamw(float* __restrict__ param, const float* __restrict__ grad, float* __restrict__ m, float* __restrict__ v,
      unsigned short* __restrict__ copy, u64 n, Step s) {
    u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    float g = grad[i] * s.scale;
    float first = s.b1 * m[i] + s.c1 * g;
    float second = s.b2 * v[i] + s.c2 * g * g;
    float p = s.keep * param[i] - s.rate * first / (sqrtf(second) * s.root + s.eps);
    m[i] = first, v[i] = second, param[i] = p;
    if (copy) copy[i] = to_bf16(p);
}
