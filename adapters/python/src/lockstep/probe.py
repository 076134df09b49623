"""Serves a torch model as the contract's `Trainer`, so that the conformance suite can question it.

    python -m lockstep.probe --model package.module:function [--listen 127.0.0.1:0] [--epoch 0] [--out DIRECTORY]

The function returns a Hugging Face causal model, or ``(model, optimizer)``; with an optimizer it can also be asked to step.
"""

from __future__ import annotations

import argparse
import importlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from .batch import Batch, BatchReader, u32
from .behavior import Behavior, SupportLogProbs
from .calls import report_of
from .errors import LockstepError, MissingScores, NotSupported, UnknownVersion, WireError
from .rules import Dlc, Fixed, Importance, LagClip
from .snapshots import SnapshotStore
from .torch.loss import combined, ess_by_version, loss
from .torch.model import batch_loss, project_causal, projected
from .torch.source import Projection
from .wire import lockstep_pb2 as pb
from .wire.lockstep_pb2_grpc import TrainerServicer, add_TrainerServicer_to_server
from .words import WeightVersion

CHUNK_BYTES = 1 << 20


class Probe:
    """A model that answers questions; one at a time."""

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        *,
        project: Any = project_causal,
        out: Path | None = None,
        epoch: int = 0,
    ) -> None:
        self.model, self.optimizer, self.project, self.out = model, optimizer, project, out
        self.version = WeightVersion(epoch, 0)
        self.store = SnapshotStore(model, project=project)
        self.store.keep(self.version)
        self.lock = threading.Lock()

    def gradient(self, message: Any) -> list[float]:
        """Gradient of a given ``(w, c)`` loss with respect to the logits of one position, over its support, at advantage 1."""
        tokens, support = (
            u32(message.tokens, "tokens").astype(np.int64),
            u32(message.support, "support").astype(np.int64),
        )
        if not 0 < message.position < len(tokens):
            raise WireError(
                f"position {message.position} of {len(tokens)} tokens has nothing before it or is none of them"
            )
        if len(message.c) != len(support):
            raise WireError(f"{len(message.c)} centring coefficients for a support of {len(support)} ids")
        device = next(self.model.parameters()).device
        ids = torch.from_numpy(tokens[None, : message.position]).to(device)
        with torch.no_grad():
            hidden, weight, bias = projected(self.model, ids, torch.ones_like(ids), project=self.project)
            row = Projection(hidden[0, -1:], weight, bias)
            logits = row.chunk(torch.zeros(1, dtype=torch.long, device=device)).double()
        logits.requires_grad_()
        flat = np.full(len(support), -np.log(len(support)))
        behavior = Behavior.of_rows(
            [int(tokens[message.position])], [(support.tolist(), flat.tolist())], message.temperature
        )
        fixed = Fixed(
            torch.tensor([message.w], dtype=torch.float64, device=device),
            torch.tensor(list(message.c), dtype=torch.float64, device=device),
        )
        loss(
            logits,
            behavior,
            torch.ones(1, dtype=torch.float64),
            fixed,
            temperature=message.temperature,
            reduction="sum",
        ).loss.backward()
        return [float(value) for value in logits.grad[0][torch.from_numpy(support).to(device)]]

    def step(self, batch: Batch, options: Any) -> Any:
        """One update on a whole batch; log p_s comes with it."""
        if self.optimizer is None:
            raise NotSupported("this probe has no optimizer: its model function returned a model alone")
        rule = _rule(options.rule)
        self.optimizer.zero_grad()
        outputs = []
        all_advantages, at = batch.advantages(), 0
        for part in batch.split(self.store.rollouts):
            advantages = all_advantages[at : at + len(part.tokens)]
            at += len(part.tokens)
            output = batch_loss(
                self.model,
                part,
                rule,
                store=self.store,
                advantages=advantages,
                totals=batch.totals,
                project=self.project,
            )
            output.loss.backward()
            outputs.append(output)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), torch.inf)
        before, self.version = self.version, WeightVersion(self.version.epoch, self.version.step + 1)
        self.optimizer.step()
        self.store.keep(self.version)
        return _report(batch, outputs, (before, self.version), float(norm), options.horizon)

    def publish(self, version: WeightVersion) -> Any:
        """Writes the weights of a version with safetensors."""
        if self.out is None:
            raise NotSupported("this probe publishes nothing: start it with --out DIRECTORY")
        from safetensors.torch import save_file

        kept, state = self.store.parameters(version), self.model.state_dict()
        own = {name: kept[name].float().contiguous() for name in sorted(kept) if name in state}
        path = self.out / f"{version}.safetensors"
        save_file(own, str(path))
        return pb.PublishedWeights(version=version.message(), path=str(path.resolve()), digest=digest(own))


def digest(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """blake3 of (length of name, name, rank, dims, f32 little-endian) of every tensor in name order; counts are u64 little-endian.

    Raises:
        NotSupported: the package blake3 is not installed; a sampler that proves its weights by their digest needs it.
    """
    try:
        blake3 = importlib.import_module("blake3").blake3
    except ImportError as error:
        raise NotSupported(
            "publishing needs the package blake3, for the digest of the weights: pip install blake3"
        ) from error
    hasher = blake3()
    for name in sorted(tensors):
        values = tensors[name].detach().cpu().float().numpy()
        hasher.update(len(name.encode()).to_bytes(8, "little") + name.encode() + values.ndim.to_bytes(8, "little"))
        for dim in values.shape:
            hasher.update(int(dim).to_bytes(8, "little"))
        hasher.update(np.ascontiguousarray(values, "<f4").tobytes())
    return bytes(hasher.digest())


def _rule(message: Any) -> Any:
    kind = message.WhichOneof("rule")
    if kind == "uncorrected":
        return Importance(None)
    if kind == "method":
        raise NotSupported(f"a probe steps with DLC or without a correction, not with {message.method}")
    if kind != "dlc":
        raise WireError("step options have no rule")
    tails = {1: "p_s", 2: "collapsed"}
    if message.dlc.tail not in tails:
        raise WireError(f"tail model is {message.dlc.tail}, not one of {sorted(tails)}")
    return Dlc(LagClip(message.dlc.clip_low, message.dlc.clip_high), tail=tails[message.dlc.tail])  # type: ignore[arg-type]


def _report(
    batch: Batch, outputs: list[Any], versions: tuple[WeightVersion, WeightVersion], norm: float, horizon: int
) -> Any:
    if outputs[0].rows.scores is None:
        raise MissingScores("a report needs log p_s, which did not come with the batch")
    return report_of(
        *versions, combined(outputs, horizon), ess_by_version(batch, outputs, horizon), norm, len(batch.tokens)
    )


class Service(TrainerServicer):  # type: ignore[misc,unused-ignore]
    """The contract's side of a probe."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def _answer(self, context: Any, of: Any) -> Any:
        try:
            with self.probe.lock:
                return of()
        except NotSupported as error:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
        except UnknownVersion as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except LockstepError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{type(error).__name__}: {error}")

    def Describe(self, request: Any, context: Any) -> Any:
        """Versions it can score at."""
        probe = self.probe
        return pb.TrainerDescription(
            version=probe.version.message(), live=[v.message() for v in probe.store.live], snapshots=True
        )

    def Score(self, request_iterator: Any, context: Any) -> Any:
        """log p over the recorded supports at the header's version."""

        def scored() -> list[Any]:
            batch, header = _read(request_iterator)
            if not header.HasField("version"):
                raise WireError("batch to score has no version")
            return list(_score_chunks(batch, self.probe.store.score(batch, WeightVersion.of(header.version))))

        yield from self._answer(context, scored)

    def Step(self, request_iterator: Any, context: Any) -> Any:
        """One update."""

        def stepped() -> Any:
            batch, header = _read(request_iterator)
            if not header.HasField("options"):
                raise WireError("batch to train on has no options")
            return self.probe.step(batch, header.options)

        return self._answer(context, stepped)

    def Publish(self, request: Any, context: Any) -> Any:
        """Weights of a version in a file."""
        return self._answer(context, lambda: self.probe.publish(WeightVersion.of(request)))

    def Retain(self, request: Any, context: Any) -> Any:
        """Drops what is not needed; the present version stays."""

        def retained() -> Any:
            self.probe.store.retain([self.probe.version, *map(WeightVersion.of, request.versions)])
            return pb.Empty()

        return self._answer(context, retained)

    def Gradient(self, request: Any, context: Any) -> Any:
        """Gradient of a given loss."""
        return self._answer(context, lambda: pb.ProbeGradient(gradient=self.probe.gradient(request)))


def _read(chunks: Iterable[Any]) -> tuple[Batch, Any]:
    reader = BatchReader()
    for chunk in chunks:
        reader.push(chunk)
    batch = reader.finish().check()
    return batch, reader.header


def _score_chunks(batch: Batch, scores: SupportLogProbs) -> Iterator[Any]:
    """Scores of each segment, in pieces of a fitting size."""
    to = lambda values: np.ascontiguousarray(values.cpu().numpy(), "<f4")  # noqa: E731
    log_p, drawn = to(scores.log_p), to(scores.log_p_sampled)
    rest = None if scores.log_rest is None else to(scores.log_rest)
    chunk, size, number, rollout = pb.ScoreChunk(), 0, -1, -1
    for segment in batch.segments:
        number = number + 1 if segment.rollout == rollout else 0
        rollout = segment.rollout
        first, last = (int(batch.behavior.offsets[at]) for at in (segment.start, segment.end))
        columns = [log_p[first:last], drawn[segment.start : segment.end], np.zeros(0, "<f4")]
        if rest is not None and np.isfinite(rest[segment.start : segment.end]).any():
            columns[2] = rest[segment.start : segment.end]
        step = CHUNK_BYTES // 16
        for at in range(0, max(map(len, columns)), step):
            piece = pb.Scores(
                rollout=rollout,
                segment=number,
                **{n: c[at : at + step].tobytes() for n, c in zip(("log_p", "log_p_sampled", "log_rest"), columns)},
            )
            if size and size + piece.ByteSize() > CHUNK_BYTES:
                yield chunk
                chunk, size = pb.ScoreChunk(), 0
            size += piece.ByteSize()
            chunk.scores.append(piece)
    yield chunk


def serve(probe: Probe, listen: str = "127.0.0.1:0") -> tuple[Any, int]:
    """Starts the service; returns the server and its port."""
    # A port that another probe has is refused, not shared.
    options = [("grpc.max_receive_message_length", 8 << 20), ("grpc.so_reuseport", 0)]
    server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
    add_TrainerServicer_to_server(Service(probe), server)
    port = server.add_insecure_port(listen)
    server.start()
    return server, port


def _made(module: str, function: str, refuse: Any) -> tuple[Any, Any]:
    """A model, and its optimizer or None."""
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        refuse(f"--model {module}:{function}: {error}")
    made = make()
    pair = made if isinstance(made, tuple) else (made, None)
    if len(pair) != 2 or not isinstance(pair[0], torch.nn.Module):
        refuse(f"--model {module}:{function} gave {type(made).__name__}, not a model or (model, optimizer)")
    return pair


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.probe", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="module:function that returns a model or (model, optimizer)")
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument(
        "--epoch", type=int, default=0, help="epoch of the first version; the sampler's must be the same"
    )
    parser.add_argument("--out", type=Path, help="where published weights are written")
    args = parser.parse_args(arguments)
    module, split, function = args.model.partition(":")
    if not split:
        parser.error(f"--model {args.model!r} is not module:function")
    model, optimizer = _made(module, function, parser.error)
    if args.out is not None and not args.out.is_dir():
        parser.error(f"--out {args.out} is no directory")
    server, port = serve(Probe(model, optimizer, out=args.out, epoch=args.epoch), args.listen)
    print(f"listening on {args.listen.rsplit(':', 1)[0]}:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
