"""Generates the wire code of the package from the one contract: `python regenerate_wire.py [DIRECTORY]` (needs grpcio-tools)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROTO = HERE.parents[1] / "middleware/proto/lockstep.proto"
NAMES = ("lockstep_pb2.py", "lockstep_pb2.pyi", "lockstep_pb2_grpc.py")


def generate(target: Path) -> None:
    """Writes the three generated files into a directory."""
    import grpc_tools
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as work:
        root = Path(work) / "lockstep/wire"
        root.mkdir(parents=True)
        shutil.copy(PROTO, root / "lockstep.proto")
        out = [f"--{kind}_out={work}" for kind in ("python", "pyi", "grpc_python")]
        include = f"-I{Path(grpc_tools.__file__).parent / '_proto'}"
        code = protoc.main(["protoc", f"-I{work}", include, *out, "lockstep/wire/lockstep.proto"])
        if code != 0:
            raise SystemExit(f"protoc ended with {code}")
        for name in NAMES:
            shutil.copy(root / name, target / name)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "src/lockstep/wire")
