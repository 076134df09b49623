"""`head_backward` beside the plain torch loss on the same numbers and threads: hidden states [T, 1024], a head of 151,936 rows;
the score-centred loss `-A [log p_a - sum_v q_v log p_v]` over 8 kept ids and the uncentred one `-A log p_a`, mean over rows;
seconds, memory, and how far log p and gradients are from f64, both of ours and of torch's. At temperature 1 torch does not divide; at another it has `logits / temperature`, as TRL has.
Last, torch's three products of matrices alone, into memory it has: what a loss over the vocabulary that is nowhere sparse
costs at least.

usage: python head.py PROGRAM THREADS [ROWS]    (PROGRAM: the release build of kernels/examples/head.rs)

Memory is what the loss holds beyond weights, hidden states and their gradients: largest resident size less that before it.
"""

import os
import subprocess
import sys
import tempfile
import time

import numpy
import torch

VOCABULARY, HIDDEN, KEPT = 151_936, 1024, 8

CASES = [
    ("over-vocabulary", "centred", 1.0),
    ("over-vocabulary", "centred", 0.8),
    ("over-vocabulary", "plain", 1.0),
    ("over-vocabulary", "plain", 0.8),
    ("over-support", "centred", 1.0),
]


def problem(folder, rows):
    """Writes the problem; logits have a standard deviation of about 3."""
    generator = torch.Generator().manual_seed(1)
    arrays = {
        "hidden.f32": torch.randn(rows, HIDDEN, generator=generator),
        "head.f32": torch.randn(VOCABULARY, HIDDEN, generator=generator).mul_(3 / HIDDEN**0.5),
        "ids.u32": torch.randint(VOCABULARY // KEPT, (rows, KEPT), generator=generator)
        + torch.arange(KEPT) * (VOCABULARY // KEPT),
        "q.f32": torch.softmax(torch.randn(rows, KEPT, generator=generator), -1),
        "advantage.f32": torch.randn(rows, generator=generator),
    }
    place = torch.randint(KEPT, (rows,), generator=generator)
    arrays["drawn.u32"] = arrays["ids.u32"][torch.arange(rows), place]
    for name, array in arrays.items():
        kind = "<u4" if name.endswith("u32") else "<f4"
        array.numpy().astype(kind).tofile(os.path.join(folder, name))


def read(folder, name):
    kind = "<u4" if name.endswith("u32") else "<f4"
    array = numpy.fromfile(os.path.join(folder, name), dtype=kind)
    return torch.from_numpy(array.astype("int64") if kind == "<u4" else array)


def status(name):
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def in_torch(folder, case, rows):
    """Seconds, bytes, log p of the drawn tokens, dh, dW: log-softmax over all rows at once, and backward."""
    over, kind, temperature = case
    hidden, head = read(folder, "hidden.f32").view(rows, HIDDEN), read(folder, "head.f32").view(VOCABULARY, HIDDEN)
    ids, q = read(folder, "ids.u32").view(rows, KEPT), read(folder, "q.f32").view(rows, KEPT)
    drawn, advantage = read(folder, "drawn.u32"), read(folder, "advantage.f32")
    for leaf in (hidden, head):
        leaf.requires_grad_()
        leaf.grad = torch.zeros_like(leaf).fill_(0.0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before, clock = status("VmRSS"), time.perf_counter()
    logits = hidden @ head.T
    if temperature != 1.0:
        logits = logits / temperature
    if over == "over-vocabulary":
        log_p = torch.log_softmax(logits, -1).gather(-1, ids)
    else:
        log_p = torch.log_softmax(logits.gather(-1, ids), -1)
    of_drawn = log_p.gather(-1, (ids == drawn[:, None]).int().argmax(-1, keepdim=True)).squeeze(-1)
    score = of_drawn - (q * log_p).sum(-1) if kind == "centred" else of_drawn
    loss = -(advantage * score).mean()
    loss.backward()
    seconds = time.perf_counter() - clock
    return seconds, status("VmHWM") - before, of_drawn.detach(), hidden.grad, head.grad


def exact(folder, case, rows):
    """In f64: log p of the drawn tokens, dh of every 64th row, and dW of 1,024 kept ids."""
    over, kind, temperature = case
    hidden = read(folder, "hidden.f32").view(rows, HIDDEN).double()
    head = read(folder, "head.f32").view(VOCABULARY, HIDDEN).double()
    ids, q = read(folder, "ids.u32").view(rows, KEPT), read(folder, "q.f32").view(rows, KEPT).double()
    drawn, advantage = read(folder, "drawn.u32")[:, None], read(folder, "advantage.f32").double()[:, None]
    some = some_ids(folder)
    log_p, of_hidden, of_head = [], [], torch.zeros(len(some), HIDDEN, dtype=torch.float64)
    for start in range(0, rows, 64):
        part = slice(start, start + 64)
        logits = hidden[part] @ head.T / temperature
        if over == "over-support":
            logits = torch.full_like(logits, -torch.inf).scatter(-1, ids[part], logits.gather(-1, ids[part]))
        gradient = torch.log_softmax(logits, -1)
        log_p.append(gradient.gather(-1, drawn[part]))
        gradient.exp_()
        if kind == "centred":
            gradient.mul_(1 - q[part].sum(-1, keepdim=True)).scatter_add_(-1, ids[part], q[part])
        gradient.scatter_add_(-1, drawn[part], torch.full_like(advantage[part], -1.0))
        gradient.mul_(advantage[part] / (temperature * rows))
        of_hidden.append(gradient[:1] @ head)
        of_head.addmm_(gradient[:, some].T, hidden[part])
    return torch.cat(log_p).squeeze(-1), torch.cat(of_hidden), of_head


def some_ids(folder):
    return read(folder, "ids.u32").unique()[::32][:1024]


def products(folder, rows):
    """Seconds of `H W^T`, `G W` and `G^T H`, 1,024 rows at a time."""
    hidden, head = read(folder, "hidden.f32").view(rows, HIDDEN), read(folder, "head.f32").view(VOCABULARY, HIDDEN)
    of_hidden, of_head = torch.zeros_like(hidden).fill_(0.0), torch.zeros_like(head).fill_(0.0)
    logits = torch.zeros(min(rows, 1024), VOCABULARY).fill_(0.0)
    clock = time.perf_counter()
    for start in range(0, rows, len(logits)):
        some, of_some = hidden[start : start + len(logits)], of_hidden[start : start + len(logits)]
        part = logits[: len(some)]
        torch.mm(some, head.T, out=part)
        torch.mm(part, head, out=of_some)
        of_head.addmm_(part.T, some)
    return time.perf_counter() - clock


def ours(program, folder, case, threads):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    output = subprocess.run([program, folder, *map(str, case)], env=environment, check=True, stdout=subprocess.PIPE).stdout
    seconds, held = output.split()
    return float(seconds), int(held), *(read(folder, name) for name in ("log_p.f32", "of_hidden.f32", "of_head.f32"))


def error(found, wanted):
    """Norm of the difference relative to the norm, and the largest difference relative to the largest entry."""
    difference = found.double().flatten() - wanted.flatten()
    return float(difference.norm() / wanted.norm()), float(difference.abs().max() / wanted.abs().max())


def report(folder, found, theirs, wanted):
    some = some_ids(folder)
    for at, name in enumerate(("log p", "dh", "dW")):
        part = {"log p": slice(None), "dh": slice(None, None, 64), "dW": some}[name]
        shape = wanted[at].shape[1:]
        errors = (error(x[at].view(-1, *shape)[part], wanted[at]) for x in (found, theirs))
        (norm, worst), (torch_norm, torch_worst) = errors
        print(f"  {name}: off by {norm:.1e} in norm, {worst:.1e} at most; torch {torch_norm:.1e}, {torch_worst:.1e}")


def main():
    program, threads = sys.argv[1], int(sys.argv[2])
    rows = int(sys.argv[3]) if len(sys.argv) > 3 else 4096
    torch.set_num_threads(threads)
    print(f"{rows} rows, {HIDDEN} hidden, vocabulary {VOCABULARY}, {KEPT} kept ids, {threads} threads, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        problem(folder, rows)
        for case in CASES:
            seconds, held, *found = ours(program, folder, case, threads)
            torch_seconds, torch_held, *theirs = in_torch(folder, case, rows)
            print(f"{case[0]}, {case[1]}, temperature {case[2]}: {seconds:.2f} s, torch {torch_seconds:.2f} s, ratio {torch_seconds / seconds:.2f}")
            print(f"  memory {held / 2**20:.0f} MiB, torch {torch_held / 2**20:.0f} MiB, ratio {torch_held / max(held, 1):.1f}")
            report(folder, found, theirs, exact(folder, case, rows))
            del found, theirs
        print(f"torch's three products alone: {products(folder, rows):.2f} s")


main()
