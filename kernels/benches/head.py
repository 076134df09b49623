"""`head_backward` beside the plain torch loss on the same numbers and threads: hidden states [T, 1024], a head of 151,936 rows,
a score-centred loss `-A [log p_a - sum_v q_v log p_v]` over 8 kept ids, mean over rows; seconds, memory, gradients. At
temperature 1 torch does not divide; at another it has `logits / temperature`, as TRL has.

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

CASES = [("over-vocabulary", 1.0), ("over-vocabulary", 0.8), ("over-support", 1.0)]


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


def plain(folder, over, rows, temperature):
    """Seconds, bytes, log p of the drawn tokens, dh, dW: log-softmax over all rows at once, and backward."""
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
    loss = -(advantage * (of_drawn - (q * log_p).sum(-1))).mean()
    loss.backward()
    seconds = time.perf_counter() - clock
    return seconds, status("VmHWM") - before, of_drawn.detach(), hidden.grad, head.grad


def ours(program, folder, over, threads, temperature):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    output = subprocess.run([program, folder, over, str(temperature)], env=environment, check=True, stdout=subprocess.PIPE).stdout
    seconds, held = output.split()
    return float(seconds), int(held), *(read(folder, name) for name in ("log_p.f32", "of_hidden.f32", "of_head.f32"))


def error(found, wanted):
    """Norm of the difference relative to the norm, and the largest difference relative to the largest entry."""
    found, wanted = found.flatten(), wanted.flatten()
    square, size, worst = 0.0, 0.0, 0.0
    for a, b in zip(found.split(1 << 24), wanted.split(1 << 24)):
        difference = (a - b).double()
        square, size = square + float(difference.square().sum()), size + float(b.double().square().sum())
        worst = max(worst, float(difference.abs().max()))
    return (square / size) ** 0.5, worst / float(wanted.abs().max())


def main():
    program, threads = sys.argv[1], int(sys.argv[2])
    rows = int(sys.argv[3]) if len(sys.argv) > 3 else 4096
    torch.set_num_threads(threads)
    print(f"{rows} rows, {HIDDEN} hidden, vocabulary {VOCABULARY}, {KEPT} kept ids, {threads} threads, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        problem(folder, rows)
        for over, temperature in CASES:
            seconds, held, *found = ours(program, folder, over, threads, temperature)
            torch_seconds, torch_held, *wanted = plain(folder, over, rows, temperature)
            print(f"{over}, temperature {temperature}: {seconds:.2f} s, torch {torch_seconds:.2f} s, ratio {torch_seconds / seconds:.2f}")
            print(f"  memory {held / 2**20:.0f} MiB, torch {torch_held / 2**20:.0f} MiB, ratio {torch_held / max(held, 1):.1f}")
            for name, a, b in zip(("log p", "dh", "dW"), found, wanted):
                print("  {}: off by {:.1e} in norm, {:.1e} at most".format(name, *error(a, b)))
            del found, wanted


main()
