// y = x W^T for a few rows of bf16 activations and weights of Q8_0: blocks of 32 signed bytes with one f16 scale. Values
// [out, in] and scales [out, in / 32] are apart, because the 34-byte blocks of a GGUF file break 16-byte loads.
//
//   y_bo = sum_j s_oj sum_{i in block j} v_oi x_bi           x [batch, in], y [batch, out] f32, in a multiple of 32
//
// One warp an output; activations are not rounded further. For up to BATCH rows: beyond that a matrix product is faster.
#include "block.cuh"

#define BATCH 8

static __device__ __forceinline__ float from_bf16(u32 bits) { return __int_as_float((int)(bits << 16)); }

// Exact, subnormals as well; scales are finite.
static __device__ __forceinline__ float from_f16(unsigned short bits) {
    const float magnitude = __int_as_float((int)((u32)(bits & 0x7fffu) << 13)) * __int_as_float(0x77800000);
    return bits & 0x8000u ? -magnitude : magnitude;
}

// Sixteen products with eight words of two activations each, in order.
static __device__ __forceinline__ float dot16(int4 v, int4 a, int4 b) {
    const int values[4] = {v.x, v.y, v.z, v.w}, words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float sum = 0.0f;
    for (int i = 0; i < 16; i++) {
        const float value = (float)(signed char)(values[i / 4] >> (8 * (i % 4)));
        sum = __fmaf_rn(value, from_bf16((u32)words[i / 2] >> (16 * (i % 2)) & 0xffffu), sum);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
q8_gemv(const signed char* __restrict__ values, const unsigned short* __restrict__ scales, int in, int out,
        const unsigned short* __restrict__ x, int batch, float* __restrict__ y) {
    const int o = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (o >= out) return;
    const int4* row = (const int4*)(values + (size_t)o * in);
    const unsigned short* row_scales = scales + (size_t)o * (in / 32);
    float sums[BATCH] = {};
    for (int i = lane; i < in / 16; i += 32) {
        const int4 v = row[i];
        const float scale = from_f16(row_scales[i / 2]);
        for (int b = 0; b < BATCH; b++) {
            if (b >= batch) continue;
            const int4* activations = (const int4*)(x + (size_t)b * in) + 2 * i;
            sums[b] = __fmaf_rn(scale, dot16(v, activations[0], activations[1]), sums[b]);
        }
    }
    for (int b = 0; b < BATCH; b++) {
        float sum = sums[b];
        for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(ALL, sum, d);
        if (lane == 0 && b < batch) y[(size_t)b * out + o] = sum;
    }
}
