"""Time and peak memory of `dlc_loss` from hidden states + head against the plain torch loss, each in a process of its own.

    python bench/loss_memory.py [--tokens 4096] [--hidden 1024] [--vocabulary 151936] [--kept 8] [--threads 2]

`kept` supports hold 8 ids on average, as top-p 0.97 gives; `head` is the sampler's top 64 and the tail's mass. The plain loss
is log_softmax over the vocabulary, a gather, and the same weights; for `kept` it masks the logits to the support.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import numpy as np


def problem(args):
    import torch

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    hidden = torch.randn(args.tokens, args.hidden, requires_grad=True)
    weight = torch.randn(args.vocabulary, args.hidden).mul_(0.02).requires_grad_()
    if args.kind == "head":
        ids = np.stack([rng.choice(args.vocabulary, 64, replace=False) for _ in range(args.tokens)])
        log_q = np.log(np.full(ids.shape, 0.55 / 64))
        lengths = np.full(args.tokens, 64)
    else:
        lengths = 1 + rng.poisson(args.kept - 1, args.tokens)
        ids = [rng.choice(args.vocabulary, n, replace=False) for n in lengths]
        log_q = [np.full(n, -np.log(n)) for n in lengths]
    flat_ids, flat_q = np.concatenate(list(ids)), np.concatenate(list(log_q))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return hidden, weight, flat_ids.astype(np.int64), flat_q, offsets, rng.normal(size=args.tokens).astype(np.float32)


def ours(args, hidden, weight, ids, log_q, offsets, advantages):
    import torch

    from lockstep import Behavior, Rest
    from lockstep import torch as lt

    tokens = ids[offsets[:-1]]
    rest = None
    if args.kind == "head":
        t = len(tokens)
        rest = Rest(np.full(t, args.vocabulary), log_q[offsets[:-1]], np.full(t, np.log(0.45)))
    behavior = Behavior(tokens, offsets, ids, log_q, rest, 1.0).check()
    rule = lt.ScoreCentring("truncated", cap=2.0)
    begin = time.perf_counter()
    lt.loss(lt.Projection(hidden, weight), behavior, torch.tensor(advantages), rule, temperature=1.0).loss.backward()
    return time.perf_counter() - begin


def plain(args, hidden, weight, ids, log_q, offsets, advantages):
    import torch

    tokens, row = torch.tensor(ids[offsets[:-1]]), torch.tensor(np.repeat(np.arange(args.tokens), np.diff(offsets)))
    ids, q, a = torch.tensor(ids), torch.tensor(log_q).float(), torch.tensor(advantages)
    begin = time.perf_counter()
    logits = hidden @ weight.T
    if args.kind == "kept":
        outside = torch.ones_like(logits, dtype=torch.bool)
        outside[row, ids] = False
        logits = logits.masked_fill(outside, -torch.inf)
    log_p = torch.log_softmax(logits, -1)
    own = log_p[torch.arange(args.tokens), tokens]
    with torch.no_grad():
        entries = log_p[row, ids]
        c = torch.minimum(entries.exp(), 2 * q.exp())
        if args.kind == "head":
            p_rest = 1 - torch.zeros(args.tokens).index_add(0, row, entries.exp())
            c -= (torch.minimum(p_rest, torch.tensor(2 * 0.45)) / p_rest)[row] * entries.exp()
        w = (own - q[torch.tensor(offsets[:-1])]).exp().clip(max=2.0)
    centring = torch.zeros(args.tokens).index_add(0, row, c * log_p[row, ids])
    (-a * (w * own - centring)).mean().backward()
    return time.perf_counter() - begin


def status(field):
    """kB of this process."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))


def reset_peak():
    """Forgets the highest resident size so far; returns the present one."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return status("VmRSS")


def worker(args):
    import torch

    torch.set_num_threads(args.threads)
    data = problem(args)
    before = reset_peak()
    seconds = {"ours": ours, "plain": plain}[args.loss](args, *data)
    peak = status("VmHWM") - before
    print(
        json.dumps(
            {
                "seconds": seconds,
                "peak_mb": peak / 1024,
                "norm": float(data[0].grad.norm()),
                "head_norm": float(data[1].grad.norm()),
            }
        )
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in [("tokens", 4096), ("hidden", 1024), ("vocabulary", 151936), ("kept", 8), ("threads", 2)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--kind", choices=["kept", "head", "both"], default="both")
    parser.add_argument("--loss", choices=["ours", "plain"])
    args = parser.parse_args()
    if args.loss:
        return worker(args)
    print(
        f"T = {args.tokens}, H = {args.hidden}, V = {args.vocabulary}, f32, {args.threads} threads; peak above the inputs"
    )
    for kind in ["kept", "head"] if args.kind == "both" else [args.kind]:
        found = {}
        for loss in ("plain", "ours"):
            command = [sys.executable, __file__, "--loss", loss, "--kind", kind] + [
                f"--{n}={getattr(args, n)}" for n in ("tokens", "hidden", "vocabulary", "kept", "threads")
            ]
            found[loss] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        a, b = found["plain"], found["ours"]
        print(
            f"{kind}: plain {a['seconds']:.1f} s, {a['peak_mb']:.0f} MB; dlc_loss {b['seconds']:.1f} s, {b['peak_mb']:.0f} MB; "
            f"time {b['seconds'] / a['seconds']:.2f}x, memory 1/{a['peak_mb'] / b['peak_mb']:.1f}; gradient norms {a['norm']:.6g} {b['norm']:.6g}, head {a['head_norm']:.6g} {b['head_norm']:.6g}",
            flush=True,
        )


if __name__ == "__main__":
    main()
