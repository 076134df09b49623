// What must give the same bits on every device, made of IEEE additions, multiplications and fused multiply-adds alone:
// the mass of an entry, the order of a row, the random bits of a draw. The definitions are `src/mass.rs`, `src/truncate.rs`
// and `src/philox.rs`.
#pragma once
#ifndef __CUDACC__
#include "shim/cuda_on_cpu.hpp"
#endif

typedef unsigned int u32;
typedef unsigned long long u64;

#define MASS_BITS 44
#define ONE_MASS (1ull << MASS_BITS)

// round(2^44 exp(gap)) for gap <= 0.
static __device__ __forceinline__ u64 mass(double gap) {
    const double round = 6755399441055744.0, integer = 4503599627370496.0;
    if (!(gap > -40.0)) gap = -40.0;
    double shifted = __fma_rn(gap, 1.4426950408889634, round);
    double n = shifted - round;
    double r = __fma_rn(n, -1.9082149292705877e-10, __fma_rn(n, -0.6931471803691238, gap));
    double s = 1.0 / 6227020800.0;
    s = __fma_rn(s, r, 1.0 / 479001600.0);
    s = __fma_rn(s, r, 1.0 / 39916800.0);
    s = __fma_rn(s, r, 1.0 / 3628800.0);
    s = __fma_rn(s, r, 1.0 / 362880.0);
    s = __fma_rn(s, r, 1.0 / 40320.0);
    s = __fma_rn(s, r, 1.0 / 5040.0);
    s = __fma_rn(s, r, 1.0 / 720.0);
    s = __fma_rn(s, r, 1.0 / 120.0);
    s = __fma_rn(s, r, 1.0 / 24.0);
    s = __fma_rn(s, r, 1.0 / 6.0);
    s = __fma_rn(s, r, 0.5);
    s = __fma_rn(s, r, 1.0);
    s = __fma_rn(s, r, 1.0);
    u64 exponent = ((u64)__double_as_longlong(shifted) + MASS_BITS) << 52;
    double scaled = __longlong_as_double((long long)((u64)__double_as_longlong(s) + exponent));
    return (u64)__double_as_longlong(scaled + integer) - (u64)__double_as_longlong(integer);
}

// exp(x) in f32 within 2 units of its last place: the exponent is split off in f64, the rest is a polynomial. 0 below -86.
static __device__ __forceinline__ float exp_f32(double x) {
    const double round = 6755399441055744.0;
    if (!(x > -86.0)) return 0.0f;
    if (x > 88.0) x = 88.0;
    const double shifted = __fma_rn(x, 1.4426950408889634, round), n = shifted - round;
    const float r = (float)__fma_rn(n, -1.9082149292705877e-10, __fma_rn(n, -0.6931471803691238, x));
    float s = 1.0f / 5040.0f;
    s = __fmaf_rn(s, r, 1.0f / 720.0f);
    s = __fmaf_rn(s, r, 1.0f / 120.0f);
    s = __fmaf_rn(s, r, 1.0f / 24.0f);
    s = __fmaf_rn(s, r, 1.0f / 6.0f);
    s = __fmaf_rn(s, r, 0.5f);
    s = __fmaf_rn(s, r, 1.0f);
    s = __fmaf_rn(s, r, 1.0f);
    const u32 exponent = (u32)__double_as_longlong(shifted) << 23;
    return __int_as_float((int)(__float_as_uint(s) + exponent));
}

// A number that orders as the logits do; -0 and +0 are one.
static __device__ __forceinline__ u32 order_key(float x) {
    u32 bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// ceil(p * of), at least 1.
static __device__ __forceinline__ u64 share(double p, u64 of) {
    double goal = ceil(p * (double)of);
    return goal < 1.0 ? 1ull : (u64)goal;
}

// Philox4x32-10: the 64 random bits of one draw.
static __device__ __forceinline__ u64 random_bits(u64 seed, u64 request, u64 position) {
    u32 c[4] = {(u32)position, (u32)(position >> 32), (u32)request, (u32)(request >> 32)};
    u32 k[2] = {(u32)seed, (u32)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        if (round) k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
        u32 h0 = __umulhi(0xD2511F53u, c[0]), l0 = 0xD2511F53u * c[0];
        u32 h1 = __umulhi(0xCD9E8D57u, c[2]), l1 = 0xCD9E8D57u * c[2];
        u32 next[4] = {h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0};
        for (int i = 0; i < 4; i++) c[i] = next[i];
    }
    return (u64)c[0] << 32 | c[1];
}
