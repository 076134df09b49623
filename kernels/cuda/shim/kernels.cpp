// Runs a kernel on the CPU: its name as argument, a problem on standard input, the answer on standard output, both as plain
// memory. The names of kernels that are broken on purpose show what the shim finds.
#include "../adamw.cu"
#include "../ess.cu"
#include "../head_backward.cu"
#include "../head_listed.cu"
#include "../head_scores.cu"
#include "../q8_gemv.cu"
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

static void broken(void (*kernel)(int*)) {
    int out[64];
    cuda_on_cpu::launch(1, 64, Order::Forward, [&] { kernel(out); });
    int poisoned = 0;
    for (int v : out) poisoned += v == -1;
    printf("%d of 64 values were read before they were written\n", poisoned);
}

static void run_sample_report() {
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
}

static void run_adamw() {
    struct { u32 n, order; Step step; } p;
    read(&p, 1);
    std::vector<float> param(p.n), grad(p.n), m(p.n), v(p.n);
    std::vector<unsigned short> copy(p.n);
    for (auto* column : {&param, &grad, &m, &v}) read(column->data(), p.n);
    cuda_on_cpu::launch((p.n + THREADS - 1) / THREADS, THREADS, Order(p.order), [&] {
        adamw(param.data(), grad.data(), m.data(), v.data(), copy.data(), p.n, p.step);
    });
    for (auto* column : {&param, &m, &v}) write(*column);
    write(copy);
}

static void run_head_backward() {
    struct { u32 rows, entries, known, order, sampler, unused; } p;
    read(&p, 1);
    std::vector<HeadRow> rows(p.rows);
    std::vector<float> logits(p.entries), sampler(p.sampler ? p.entries : 0);
    std::vector<u32> places(p.known);
    std::vector<double> c(p.known);
    read(rows.data(), rows.size());
    read(logits.data(), logits.size());
    read(sampler.data(), sampler.size());
    read(places.data(), places.size());
    read(c.data(), c.size());
    const float* of_sampler = p.sampler ? sampler.data() : nullptr;
    std::vector<double> log_p(p.known), log_s(p.known), losses(p.rows);
    std::vector<HeadScores> scores(p.rows);
    cuda_on_cpu::launch(p.rows, THREADS, Order(p.order), [&] {
        head_scores(logits.data(), of_sampler, rows.data(), places.data(), log_p.data(), log_s.data(), scores.data());
    });
    cuda_on_cpu::launch(p.rows, THREADS, Order(p.order), [&] {
        head_backward(logits.data(), of_sampler, rows.data(), places.data(), c.data(), losses.data());
    });
    write(scores);
    write(losses);
    write(log_p);
    write(log_s);
    write(logits);
}

static void run_head_listed() {
    struct { u32 n, vocabulary, hidden_rows, width, runs, order; } p;
    read(&p, 1);
    std::vector<float> hidden(size_t(p.hidden_rows) * p.width), head(size_t(p.vocabulary) * p.width), gradients(p.n);
    std::vector<u32> rows(p.n), ids(p.n), starts(p.runs + 1), into(p.runs);
    read(hidden.data(), hidden.size());
    read(head.data(), head.size());
    read(gradients.data(), p.n);
    for (auto* column : {&rows, &ids, &starts, &into}) read(column->data(), column->size());
    std::vector<float> logits(p.n), of_hidden(hidden.size());
    cuda_on_cpu::launch((p.n + WARPS - 1) / WARPS, THREADS, Order(p.order), [&] {
        listed_logits(hidden.data(), head.data(), int(p.width), rows.data(), ids.data(), p.n, logits.data());
    });
    cuda_on_cpu::launch(p.runs, THREADS, Order(p.order), [&] {
        listed_sums(head.data(), int(p.width), starts.data(), into.data(), ids.data(), gradients.data(), of_hidden.data());
    });
    write(logits);
    write(of_hidden);
}

static void run_ess() {
    struct { u32 n, sequences, order, unused; double log_low, log_high; } p;
    read(&p, 1);
    std::vector<double> log_ratios(p.n), by_sequence(p.sequences);
    std::vector<u32> offsets(p.sequences + 1);
    read(log_ratios.data(), p.n);
    read(offsets.data(), offsets.size());
    const unsigned pieces = (p.n + PIECE - 1) / PIECE;
    std::vector<RatioSums> sums(pieces);
    cuda_on_cpu::launch(pieces, THREADS, Order(p.order), [&] {
        ratio_sums(log_ratios.data(), p.n, p.log_low, p.log_high, sums.data());
    });
    cuda_on_cpu::launch((p.sequences + WARPS - 1) / WARPS, THREADS, Order(p.order), [&] {
        sequence_log_ratios(log_ratios.data(), offsets.data(), p.sequences, by_sequence.data());
    });
    write(sums);
    write(by_sequence);
}

static void run_q8_gemv() {
    struct { u32 in, out, batch, order; } p;
    read(&p, 1);
    std::vector<int4> values(size_t(p.out) * p.in / 16), x(size_t(p.batch) * p.in / 8);
    std::vector<unsigned short> scales(size_t(p.out) * p.in / 32);
    read(values.data(), values.size());
    read(scales.data(), scales.size());
    read(x.data(), x.size());
    std::vector<float> y(size_t(p.batch) * p.out);
    cuda_on_cpu::launch((p.out + WARPS - 1) / WARPS, THREADS, Order(p.order), [&] {
        q8_gemv((const signed char*)values.data(), scales.data(), int(p.in), int(p.out), (const unsigned short*)x.data(),
                int(p.batch), y.data());
    });
    write(y);
}

static bool run(const std::string& name) {
    if (name == "sample_report") run_sample_report();
    else if (name == "adamw") run_adamw();
    else if (name == "head_backward") run_head_backward();
    else if (name == "head_listed") run_head_listed();
    else if (name == "ess") run_ess();
    else if (name == "q8_gemv") run_q8_gemv();
    else if (name == "divergent-barrier") broken(divergent_barrier);
    else if (name == "bad-mask") broken(bad_mask);
    else if (name == "unnamed-lane") broken(unnamed_lane);
    else if (name == "missing-barrier") broken(missing_barrier);
    else return false;
    return true;
}

int main(int argc, char** argv) {
    try {
        if (argc == 2 && run(argv[1])) return 0;
        fprintf(stderr, "usage: kernels NAME\n");
        return 3;
    } catch (const std::exception& fault) {
        fprintf(stderr, "%s\n", fault.what());
        return 1;
    }
}
