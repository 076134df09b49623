// Sums over a block in an order that does not depend on the schedule.
#pragma once
#include "exact.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ALL 0xffffffffu

static __device__ __forceinline__ u64 block_sum(u64 v, u64* shared) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(ALL, v, d);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    u64 sum = 0;
    for (int w = 0; w < WARPS; w++) sum += shared[w];
    __syncthreads();
    return sum;
}

// The order is that of lanes and warps, whatever the schedule.
static __device__ __forceinline__ double block_sum_f64(double v, double* shared) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(ALL, v, d);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    double sum = 0.0;
    for (int w = 0; w < WARPS; w++) sum += shared[w];
    __syncthreads();
    return sum;
}

enum { OK = 0, BAD_LOGIT = 1, NO_FINITE_LOGIT = 2 };

// Largest finite logit of a row; `status` says what is wrong with the entries.
static __device__ __forceinline__ float largest(const float* row, int n, u64* shared, u32* status) {
    __shared__ float best[WARPS];
    const float none = -__int_as_float(0x7f800000);
    float max = none;
    u64 bad = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float x = row[i];
        bad += !(x < -none);
        max = x > max ? x : max;
    }
    bad = block_sum(bad, shared);
    for (int d = 16; d; d >>= 1) {
        float other = __shfl_xor_sync(ALL, max, d);
        max = other > max ? other : max;
    }
    if ((threadIdx.x & 31) == 0) best[threadIdx.x >> 5] = max;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) max = best[w] > max ? best[w] : max;
    __syncthreads();
    *status = bad ? BAD_LOGIT : max == none ? NO_FINITE_LOGIT : OK;
    return max;
}
