"""`sample_report` beside torch on the same rows and threads: sort, cumulative sum, renormalise, multinomial, log-probs.

usage: python sample_report.py PROGRAM THREADS [ROWS]    (PROGRAM: the release build of kernels/examples/sample_report.rs)
"""

import os
import subprocess
import sys
import tempfile
import time

import numpy
import torch

VOCABULARY = 151_936


def sort_and_draw(logits, top_p):
    """Tokens, ids in sorted order, and log-probs of what is kept: the usual sort-based path."""
    values, ids = torch.sort(torch.log_softmax(logits, -1), dim=-1, descending=True)
    p = values.exp()
    before = torch.cumsum(p, -1) - p
    kept = before < top_p
    q = torch.where(kept, p, 0.0)
    q = q / q.sum(-1, keepdim=True)
    token = torch.multinomial(q, 1)
    return ids.gather(-1, token), ids, q.log()


def main():
    program, threads = sys.argv[1], int(sys.argv[2])
    rows = int(sys.argv[3]) if len(sys.argv) > 3 else 64
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "logits.f32")
        environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
        ours = float(subprocess.run([program, "time", str(rows), file], env=environment, check=True, stdout=subprocess.PIPE).stdout)
        logits = torch.from_numpy(numpy.fromfile(file, dtype="<f4").reshape(rows, VOCABULARY))
    best = float("inf")
    for _ in range(5):
        clock = time.perf_counter()
        sort_and_draw(logits, 0.95)
        best = min(best, (time.perf_counter() - clock) / rows)
    print(f"{rows} rows of {VOCABULARY}, top-p 0.95, {threads} threads, best of 5 each")
    print(f"sample_report {1e3 * ours:.3f} ms a row, torch {1e3 * best:.3f} ms a row, ratio {best / ours:.1f}")


main()
