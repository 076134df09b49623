// Runs a CUDA kernel on the CPU, to test its logic: one fiber a CUDA thread, one block after the other, on one OS thread.
//
// It names what a GPU would hang on or hide: a barrier that not every thread of the block reaches, a warp intrinsic whose
// mask does not fit, a shuffle from a lane outside its mask. Shared memory is filled with 0xFF before every block, so that
// a value read before it was written shows. The order in which fibers run is a choice (`Order`): a missing barrier changes
// the result with it. What it cannot show: races between blocks, the memory model, speed.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __shared__ static __attribute__((section("cuda_shared")))

extern "C" char __start_cuda_shared[] __attribute__((weak));
extern "C" char __stop_cuda_shared[] __attribute__((weak));

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) int4 {
    int x, y, z, w;
};

namespace cuda_on_cpu {

enum class Order { Forward, Backward, Shuffled };
enum class State { Ready, AtBlockBarrier, AtWarpBarrier, Done };

constexpr unsigned WARP = 32;
constexpr size_t STACK_BYTES = 64 << 10;

// Glibc's swapcontext makes a system call a switch; this one saves what the ABI says a callee saves.
#if defined(__x86_64__)
extern "C" void cuda_on_cpu_switch(void** save, void* load);
asm(R"(
.text
.globl cuda_on_cpu_switch
.hidden cuda_on_cpu_switch
.type cuda_on_cpu_switch,@function
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_on_cpu_switch,.-cuda_on_cpu_switch
)");
#endif

struct Thread {
    unsigned index = 0;
    State state = State::Ready;
    unsigned mask = 0;
    uint64_t exchanged = 0;
    std::vector<char> stack;
#if defined(__x86_64__)
    void* context = nullptr;
#else
    ucontext_t context;
#endif
};

struct Block {
    dim3 index, dim, grid;
    std::vector<Thread> threads;
    Thread* running = nullptr;
    const std::function<void()>* body = nullptr;
    std::string fault;
#if defined(__x86_64__)
    void* scheduler = nullptr;
#else
    ucontext_t scheduler;
#endif
};

inline Block*& block() {
    static Block* current = nullptr;
    return current;
}

inline void to_scheduler() {
    Block& b = *block();
#if defined(__x86_64__)
    cuda_on_cpu_switch(&b.running->context, b.scheduler);
#else
    swapcontext(&b.running->context, &b.scheduler);
#endif
}

inline void wait(State state) {
    block()->running->state = state;
    to_scheduler();
}

inline void entry() {
    (*block()->body)();
    block()->running->state = State::Done;
    to_scheduler();
}

inline void start(Thread& t) {
    t.state = State::Ready;
    t.mask = 0;
#if defined(__x86_64__)
    auto top = reinterpret_cast<uintptr_t>(t.stack.data() + t.stack.size()) & ~uintptr_t(15);
    auto* slot = reinterpret_cast<void**>(top);
    *--slot = nullptr;  // keeps the stack aligned as after a call
    *--slot = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; saved++) *--slot = nullptr;
    t.context = slot;
#else
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = t.stack.size();
    t.context.uc_link = nullptr;
    makecontext(&t.context, entry, 0);
#endif
}

inline void resume(Block& b, Thread& t) {
    b.running = &t;
#if defined(__x86_64__)
    cuda_on_cpu_switch(&b.scheduler, t.context);
#else
    swapcontext(&b.scheduler, &t.context);
#endif
}

inline unsigned lanes_of(const Block& b, unsigned first) {
    return std::min<unsigned>(WARP, unsigned(b.threads.size()) - first);
}

// Frees the lanes that have met at their warp's barrier; true when some were freed.
inline bool release_warp(Block& b, unsigned first) {
    unsigned lanes = lanes_of(b, first), waiting = 0;
    for (unsigned l = 0; l < lanes; l++)
        if (b.threads[first + l].state == State::AtWarpBarrier) waiting |= 1u << l;
    unsigned all = lanes == WARP ? ~0u : (1u << lanes) - 1;
    for (unsigned l = 0; l < lanes; l++) {
        if (!(waiting >> l & 1)) continue;
        unsigned mask = b.threads[first + l].mask & all;
        if (!(mask >> l & 1)) {
            b.fault = "a lane calls a warp intrinsic with a mask that does not name it";
            return false;
        }
        bool met = (waiting & mask) == mask;
        for (unsigned k = 0; met && k < lanes; k++)
            if (mask >> k & 1) met = (b.threads[first + k].mask & all) == mask;
        if (!met) continue;
        for (unsigned k = 0; k < lanes; k++)
            if (mask >> k & 1) b.threads[first + k].state = State::Ready;
        return true;
    }
    return false;
}

inline std::vector<unsigned> order_of(size_t n, Order order) {
    std::vector<unsigned> turns(n);
    for (unsigned i = 0; i < n; i++) turns[i] = order == Order::Backward ? unsigned(n) - 1 - i : i;
    uint64_t state = 88172645463325252ull;
    for (size_t i = n; order == Order::Shuffled && i > 1; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        std::swap(turns[i - 1], turns[state % i]);
    }
    return turns;
}

// Runs one warp until each of its lanes is done or waits for the block: warps drift as far apart as barriers let them.
inline void run_warp(Block& b, unsigned first, const std::vector<unsigned>& turns) {
    do {
        for (unsigned turn : turns)
            if (turn / WARP == first / WARP && b.threads[turn].state == State::Ready) resume(b, b.threads[turn]);
    } while (b.fault.empty() && release_warp(b, first));
}

inline void run_warps(Block& b, const std::vector<unsigned>& turns) {
    std::vector<bool> seen((b.threads.size() + WARP - 1) / WARP);
    for (unsigned turn : turns) {
        if (seen[turn / WARP]) continue;
        seen[turn / WARP] = true;
        run_warp(b, turn / WARP * WARP, turns);
        if (!b.fault.empty()) return;
    }
}

inline void run_block(Block& b, const std::vector<unsigned>& turns) {
    if (__start_cuda_shared) memset(__start_cuda_shared, 0xFF, size_t(__stop_cuda_shared - __start_cuda_shared));
    for (Thread& t : b.threads) start(t);
    size_t threads = b.threads.size();
    for (;;) {
        run_warps(b, turns);
        if (!b.fault.empty()) return;
        size_t done = 0, at_barrier = 0;
        for (const Thread& t : b.threads) {
            done += t.state == State::Done;
            at_barrier += t.state == State::AtBlockBarrier;
        }
        if (done == threads) return;
        if (at_barrier < threads) {
            b.fault = at_barrier ? "barrier divergence: " + std::to_string(threads - at_barrier) + " of " +
                                       std::to_string(threads) + " threads did not reach __syncthreads()"
                                 : "warp divergence: a lane named in a mask never arrived";
            return;
        }
        for (Thread& t : b.threads) t.state = State::Ready;
    }
}

// Runs every block of a grid; throws with the block and the rule the kernel broke.
inline void launch(dim3 grid, dim3 dim, Order order, const std::function<void()>& body) {
    Block b;
    b.dim = dim, b.grid = grid, b.body = &body;
    b.threads.resize(size_t(dim.x) * dim.y * dim.z);
    for (unsigned i = 0; i < b.threads.size(); i++) b.threads[i].index = i, b.threads[i].stack.resize(STACK_BYTES);
    auto turns = order_of(b.threads.size(), order);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                b.index = dim3(x, y, z);
                block() = &b;
                run_block(b, turns);
                block() = nullptr;
                if (!b.fault.empty())
                    throw std::runtime_error("block " + std::to_string(x) + ": " + b.fault);
            }
}

inline void warp_barrier(unsigned mask) {
    block()->running->mask = mask;
    wait(State::AtWarpBarrier);
}

inline int lane() { return int(block()->running->index % WARP); }

template <class T>
T shuffle(unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    Block& b = *block();
    Thread& me = *b.running;
    me.exchanged = 0;
    memcpy(&me.exchanged, &value, sizeof value);
    warp_barrier(mask);
    if (source >= 0 && source < int(WARP)) {
        if (!(mask >> source & 1)) b.fault = "a shuffle reads a lane outside its mask";
        memcpy(&value, &b.threads[me.index / WARP * WARP + unsigned(source)].exchanged, sizeof value);
    }
    warp_barrier(mask);
    return value;
}

inline dim3 thread_index() {
    const Block& b = *block();
    unsigned i = b.running->index;
    return dim3(i % b.dim.x, i / b.dim.x % b.dim.y, i / (b.dim.x * b.dim.y));
}

}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::thread_index())
#define blockIdx (cuda_on_cpu::block()->index)
#define blockDim (cuda_on_cpu::block()->dim)
#define gridDim (cuda_on_cpu::block()->grid)

inline void __syncthreads() { cuda_on_cpu::wait(cuda_on_cpu::State::AtBlockBarrier); }
inline void __syncwarp(unsigned mask = ~0u) { cuda_on_cpu::warp_barrier(mask); }
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int other) { return cuda_on_cpu::shuffle(mask, v, cuda_on_cpu::lane() ^ other); }
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned d) { return cuda_on_cpu::shuffle(mask, v, cuda_on_cpu::lane() - int(d)); }
template <class T>
T __shfl_sync(unsigned mask, T v, int source) { return cuda_on_cpu::shuffle(mask, v, source & 31); }

template <class T>
T atomicAdd(T* at, T v) { T old = *at; *at = old + v; return old; }
template <class T>
T atomicOr(T* at, T v) { T old = *at; *at = old | v; return old; }
template <class T>
T atomicMin(T* at, T v) { T old = *at; *at = std::min(old, v); return old; }

inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline long long __double_as_longlong(double x) { long long bits; memcpy(&bits, &x, 8); return bits; }
inline double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, 8); return x; }
inline float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
