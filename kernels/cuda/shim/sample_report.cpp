// Runs `sample_report.cu` on the CPU: a problem on standard input, its answer on standard output, both as plain memory.
// With a word as argument it runs a kernel that is broken on purpose, and says what was named.
#include "../sample_report.cu"
#include <cstdio>
#include <cstdlib>

using cuda_on_cpu::Order;

struct Problem {
    u32 rows, vocabulary, cap, order, stages, unused;
    Stage chain[4];
};

template <class T>
static void read(T* into, size_t n) {
    if (fread(into, sizeof(T), n, stdin) != n) {
        fprintf(stderr, "the problem ends early\n");
        exit(2);
    }
}

template <class T>
static void write(const std::vector<T>& from) {
    fwrite(from.data(), sizeof(T), from.size(), stdout);
}

static void divergent_barrier(int* out) {
    if (threadIdx.x < 16) __syncthreads();
    out[threadIdx.x] = 1;
}

static void bad_mask(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(ALL, (int)threadIdx.x, 1);
}

static void unnamed_lane(int* out) { out[threadIdx.x] = __shfl_xor_sync(0xfffffffeu, (int)threadIdx.x, 1); }

static void missing_barrier(int* out) {
    __shared__ int values[64];
    values[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = values[63 - threadIdx.x];
}

static int broken(const std::string& which) {
    int out[64];
    auto kernel = which == "divergent-barrier" ? divergent_barrier
                  : which == "bad-mask"        ? bad_mask
                  : which == "unnamed-lane"    ? unnamed_lane
                                               : missing_barrier;
    cuda_on_cpu::launch(1, 64, Order::Forward, [&] { kernel(out); });
    int poisoned = 0;
    for (int v : out) poisoned += v == -1;
    printf("%d of 64 values were read before they were written\n", poisoned);
    return 0;
}

static int solve() {
    Problem p;
    read(&p, 1);
    std::vector<float> logits(size_t(p.rows) * p.vocabulary);
    std::vector<u64> draws(size_t(p.rows) * 3);
    read(logits.data(), logits.size());
    read(draws.data(), draws.size());
    std::vector<u32> ids(size_t(p.rows) * p.cap);
    std::vector<double> log_q(size_t(p.rows) * p.cap);
    std::vector<Report> reports(p.rows);
    cuda_on_cpu::launch(p.rows, THREADS, Order(p.order), [&] {
        sample_report(logits.data(), int(p.vocabulary), p.chain, int(p.stages), draws.data(), p.cap, ids.data(), log_q.data(),
                      reports.data());
    });
    write(reports);
    write(ids);
    write(log_q);
    return 0;
}

int main(int argc, char** argv) {
    try {
        return argc > 1 ? broken(argv[1]) : solve();
    } catch (const std::exception& fault) {
        fprintf(stderr, "%s\n", fault.what());
        return 1;
    }
}
