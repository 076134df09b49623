"""Receiving a batch of 512 x 1,024 tokens with supports, against the same bytes over a plain socket.

    python bench/receive.py [--rollouts 512] [--tokens 1024] [--runs 15]

The sender is another process and has everything ready before it is asked. Socket: 1 MB messages, each read into a buffer of its own. Memory
is the peak of resident memory above what was there before, and the batch's size is that of its columns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import struct
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def status(field):
    """kB of this process."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))


def behavior(rng, count):
    """About half singletons, 13 kept ids elsewhere: 59 bytes a token."""
    from lockstep.wire import lockstep_pb2 as pb

    lengths = np.where(rng.random(count) < 0.5, 0, rng.poisson(12.5, count) + 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    ids = np.arange(total) % 151_000 + 1
    log_q = np.repeat(-np.log(np.maximum(lengths, 1)), lengths)
    tokens = np.where(lengths > 0, ids[np.minimum(offsets[:-1], max(total - 1, 0))], 7)
    return pb.Behavior(
        tokens=tokens.astype("<u4").tobytes(),
        offsets=offsets.astype("<u4").tobytes(),
        ids=ids.astype("<u4").tobytes(),
        log_q=log_q.astype("<f4").tobytes(),
    )


def messages(args):
    """The batch in chunks of at most 1 MB."""
    import fake

    from lockstep.wire import lockstep_pb2 as pb

    rng = np.random.default_rng(0)

    def pieces():
        yield pb.BatchPiece(header=pb.BatchHeader(plan=1, rollouts=args.rollouts, profiles=[fake.PROFILE]))
        for index in range(args.rollouts):
            yield pb.BatchPiece(request=fake.request(1, index, index // 8))
            yield pb.BatchPiece(
                delta=pb.Delta(
                    rollout=pb.RolloutId(plan=1, index=index),
                    behavior=behavior(rng, args.tokens),
                    stamp=fake.stamp(3),
                    kv=pb.KV_HISTORY_FRESH,
                    finish=pb.Finish(length=True),
                )
            )
            yield pb.BatchPiece(reward=1.0)

    return list(fake.chunks(pieces()))


def sender(args, addresses):
    """A gRPC server with the messages ready, and a socket with the same bytes."""
    from concurrent import futures

    import grpc

    raw = [chunk.SerializeToString() for chunk in messages(args)]
    handler = grpc.unary_stream_rpc_method_handler(lambda request, context: iter(raw))
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("lockstep.v1.Middleware", {"NextBatch": handler})]
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    plain = socket.create_server(("127.0.0.1", 0))
    addresses.send((address, plain.getsockname()[1], sum(map(len, raw)), len(raw)))
    while True:
        peer, _ = plain.accept()
        with peer:
            for data in raw:
                peer.sendall(struct.pack("<I", len(data)))
                peer.sendall(data)


def over_socket(port, count):
    """All messages, each into a buffer of its own: the bytes are in memory, nothing is read out of them."""
    kept = []
    begin = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as peer:
        for _ in range(count):
            buffer = bytearray(struct.unpack("<I", peer.recv(4, socket.MSG_WAITALL))[0])
            view, at = memoryview(buffer), 0
            while at < len(buffer):
                at += peer.recv_into(view[at:])
            kept.append(buffer)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in [("rollouts", 512), ("tokens", 1024), ("runs", 15)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    import grpc

    import lockstep
    from lockstep.batch import BatchReader
    from lockstep.wire import lockstep_pb2 as pb

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=sender, args=(args, there), daemon=True)
    process.start()
    address, port, size, count = here.recv()
    client = lockstep.connect(address)
    request = pb.NextBatchRequest(consumer=client.settings.message())
    sockets, receives, checks, peaks = [], [], [], []
    batch = None
    for _ in range(args.runs):
        sockets.append(over_socket(port, count))
        batch = None
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = status("VmRSS")
        begin = time.perf_counter()
        reader = BatchReader()
        for chunk in client._stub.NextBatch(request):
            reader.push(chunk)
        batch = reader.finish()
        del chunk, reader
        receives.append(time.perf_counter() - begin)
        peaks.append((status("VmHWM") - before) / 1024)
        begin = time.perf_counter()
        batch.check()
        checks.append(time.perf_counter() - begin)
    b = batch.behavior
    columns = (b.tokens.nbytes + b.ids.nbytes + b.log_q.nbytes + 4 * len(b.offsets)) / 2**20
    plain, ours = min(sockets), min(receives)
    print(
        f"{len(batch)} rollouts, {len(batch.tokens)} tokens, {len(b.ids)} entries: {size / 2**20:.1f} MB in {count} messages (grpcio {grpc.__version__})"
    )
    print(
        f"plain socket {plain * 1e3:.0f} ms; into a Batch {ours * 1e3:.0f} ms, {ours / plain:.1f}x; best of {args.runs} "
        f"(medians {statistics.median(sockets) * 1e3:.0f} and {statistics.median(receives) * 1e3:.0f} ms)"
    )
    print(
        f"peak memory {max(peaks):.0f} MB above before, {max(peaks) / columns:.1f}x the {columns:.1f} MB of its columns"
    )
    print(f"the full check of every support, once more, takes {statistics.median(checks) * 1e3:.0f} ms")
    process.kill()


if __name__ == "__main__":
    main()
