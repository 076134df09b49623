// One block a row of f32 logits [rows, V]: truncates by a chain of filters, draws a token, reports its distribution.
// The definition is `src/sample_report.rs`; support, counts and token are the same bits.
//
// What is kept is a prefix of the row ranked by (logit descending, id ascending): every entry above `key`, and of those
// equal to it the ones with an id of at most `last`. A filter moves that border by a radix descent over the keys, four
// digits of eight bits, each one pass over the row. Mass is summed in integers, so no order of threads shows.
#include "block.cuh"

enum { TEMPERATURE = 0, TOP_K = 1, TOP_P = 2, MIN_P = 3 };

struct Stage {
    int filter;
    double value;
};
static_assert(sizeof(Stage) == 16, "src/cuda/layout.rs has the same");

struct Report {
    double log_q, log_p, log_sum_exp, kept_mass;
    u32 token, kept, status, overflow;
};
static_assert(sizeof(Report) == 48, "src/cuda/layout.rs has the same");

// The border of what is kept, and the temperature so far.
struct Border {
    u32 key, last;
    double max, inv_t;
};

static __device__ __forceinline__ bool keeps(const Border& b, float x, u32 id) {
    u32 key = order_key(x);
    return key > b.key || (key == b.key && id <= b.last);
}

static __device__ __forceinline__ u64 mass_of(const Border& b, float x) { return mass(((double)x - b.max) * b.inv_t); }

// Sum of v over the threads before this one; `total` over all.
static __device__ __forceinline__ u64 block_before(u64 v, u64* shared, u64* total) {
    u64 up_to = v;
    for (int d = 1; d < 32; d <<= 1) {
        u64 below = __shfl_up_sync(ALL, up_to, d);
        if ((threadIdx.x & 31) >= (unsigned)d) up_to += below;
    }
    if ((threadIdx.x & 31) == 31) shared[threadIdx.x >> 5] = up_to;
    __syncthreads();
    u64 before = up_to - v, sum = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < (int)(threadIdx.x >> 5)) before += shared[w];
        sum += shared[w];
    }
    __syncthreads();
    *total = sum;
    return before;
}

// Weight of an entry in a descent: its mass, or 1.
static __device__ __forceinline__ u64 weight(const Border& b, float x, bool by_mass) { return by_mass ? mass_of(b, x) : 1; }

// The largest key with  weight{key' >= key} >= goal  over what is kept; `above` gets the weight strictly above it.
static __device__ __forceinline__ u32 descend(const float* row, int V, const Border& b, bool by_mass, u64 goal, u64* above) {
    __shared__ u64 bins[256];
    __shared__ u64 found[2];
    u32 prefix = 0;
    u64 over = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS) bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < V; i += THREADS) {
            u32 key = order_key(row[i]);
            if (!keeps(b, row[i], i) || (shift < 24 && key >> (shift + 8) != prefix)) continue;
            u64 w = weight(b, row[i], by_mass);
            if (w) atomicAdd(&bins[key >> shift & 255], w);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int bin = 255;
            u64 sum = over;
            while (bin > 0 && sum + bins[bin] < goal) sum += bins[bin--];
            found[0] = bin, found[1] = sum;
        }
        __syncthreads();
        prefix = prefix << 8 | (u32)found[0];
        over = found[1];
        __syncthreads();
    }
    *above = over;
    return prefix;
}

// Id of the n-th kept entry, by id, that equals `key`.
static __device__ __forceinline__ u32 nth_tie(const float* row, int V, const Border& b, u32 key, u64 n, u64* shared) {
    __shared__ u32 at;
    u64 seen = 0;
    for (int first = 0; first < V; first += THREADS) {
        int i = first + threadIdx.x;
        u64 here = i < V && order_key(row[i]) == key && keeps(b, row[i], i), all;
        u64 before = seen + block_before(here, shared, &all);
        if (here && before + 1 == n) at = i;
        seen += all;
        if (seen >= n) break;
    }
    __syncthreads();
    u32 id = at;
    __syncthreads();
    return id;
}

// Keeps the shortest prefix with at least `goal` of weight.
static __device__ __forceinline__ void cut(const float* row, int V, Border& b, bool by_mass, u64 goal, u64* shared) {
    u64 above;
    u32 key = descend(row, V, b, by_mass, goal, &above);
    u64 each = 1;
    if (by_mass) {
        u32 bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
        each = mass_of(b, __int_as_float((int)bits));
    }
    u64 ties = (goal - above + each - 1) / each;
    u32 last = nth_tie(row, V, b, key, ties, shared);
    b.key = key, b.last = last;
}

static __device__ __forceinline__ u64 kept_sum(const float* row, int V, const Border& b, bool by_mass, u64* shared) {
    u64 sum = 0;
    for (int i = threadIdx.x; i < V; i += THREADS)
        if (keeps(b, row[i], i)) sum += weight(b, row[i], by_mass);
    return block_sum(sum, shared);
}

// Keeps the entries with at least the share p of the largest's mass.
static __device__ __forceinline__ void min_share(const float* row, int V, Border& b, double p, u64* shared) {
    u64 goal = share(p, ONE_MASS), count = 0;
    for (int i = threadIdx.x; i < V; i += THREADS) count += keeps(b, row[i], i) && mass_of(b, row[i]) >= goal;
    count = block_sum(count, shared);
    cut(row, V, b, false, count, shared);
}

static __device__ __forceinline__ void apply(const float* row, int V, Border& b, Stage s, u64* shared) {
    if (s.filter == TEMPERATURE) b.inv_t = 1.0 / s.value;
    if (s.filter == TOP_K && s.value >= 1.0) {
        u64 kept = kept_sum(row, V, b, false, shared), k = (u64)s.value;
        if (k < kept) cut(row, V, b, false, k, shared);
    }
    if (s.filter == TOP_P && s.value < 1.0)
        cut(row, V, b, true, share(s.value, kept_sum(row, V, b, true, shared)), shared);
    if (s.filter == MIN_P && s.value > 0.0) min_share(row, V, b, s.value, shared);
}

// The drawn token; writes the kept ids in order where they fit.
static __device__ __forceinline__ u32 draw(const float* row, int V, const Border& b, u64 point, u32* ids, u32 cap, u64* shared) {
    __shared__ u32 drawn;
    u64 below = 0, listed = 0;
    for (int first = 0; first < V; first += THREADS) {
        int i = first + threadIdx.x;
        bool kept = i < V && keeps(b, row[i], i);
        u64 m = kept ? mass_of(b, row[i]) : 0, all, count;
        u64 before = below + block_before(m, shared, &all);
        if (before <= point && point < before + m) drawn = i;
        u64 place = listed + block_before(kept, shared, &count);
        if (kept && place < cap) ids[place] = i;
        below += all, listed += count;
    }
    __syncthreads();
    return drawn;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
sample_report(const float* __restrict__ logits, int V, const Stage* __restrict__ chain, int stages,
              const u64* __restrict__ draws, u32 cap,
              u32* __restrict__ ids, double* __restrict__ log_q, Report* __restrict__ reports) {
    __shared__ u64 shared[WARPS];
    const float* row = logits + (size_t)blockIdx.x * V;
    u32* my_ids = ids + (size_t)blockIdx.x * cap;
    double* my_log_q = log_q + (size_t)blockIdx.x * cap;
    Report r = {0.0, 0.0, 0.0, 0.0, 0, 0, OK, 0};
    float max = largest(row, V, shared, &r.status);
    if (r.status != OK) {
        if (threadIdx.x == 0) reports[blockIdx.x] = r;
        return;
    }
    // Everything finite is kept at first: the key above negative infinity's.
    Border b = {order_key(-__int_as_float(0x7f800000)) + 1, ALL, (double)max, 1.0};
    for (int s = 0; s < stages; s++) apply(row, V, b, chain[s], shared);
    Border whole = {order_key(-__int_as_float(0x7f800000)) + 1, ALL, b.max, b.inv_t};
    u64 kept = kept_sum(row, V, b, true, shared), total = kept_sum(row, V, whole, true, shared);
    r.kept = (u32)kept_sum(row, V, b, false, shared);
    r.overflow = r.kept > cap;
    const u64* d = draws + (size_t)blockIdx.x * 3;
    r.token = draw(row, V, b, __umul64hi(random_bits(d[0], d[1], d[2]), kept), my_ids, cap, shared);
    double log_kept = log((double)kept / (double)ONE_MASS), log_total = log((double)total / (double)ONE_MASS);
    double gap = ((double)row[r.token] - b.max) * b.inv_t;
    r.log_q = gap - log_kept, r.log_p = gap - log_total;
    r.log_sum_exp = b.max * b.inv_t + log_total;
    r.kept_mass = (double)kept / (double)total;
    for (u32 i = threadIdx.x; !r.overflow && i < r.kept; i += THREADS)
        my_log_q[i] = ((double)row[my_ids[i]] - b.max) * b.inv_t - log_kept;
    if (threadIdx.x == 0) reports[blockIdx.x] = r;
}
