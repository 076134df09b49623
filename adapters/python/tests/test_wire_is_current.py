"""The committed wire code says what the contract says."""

import tempfile
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from lockstep.wire import lockstep_pb2, lockstep_pb2_grpc

PACKAGE = Path(__file__).parents[1]


def test_the_generated_code_is_current():
    grpc_tools = pytest.importorskip("grpc_tools")
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as work:
        root = Path(work) / "lockstep/wire"
        root.mkdir(parents=True)
        (root / "lockstep.proto").write_bytes((PACKAGE / "../../middleware/proto/lockstep.proto").read_bytes())
        out = Path(work) / "set"
        include = f"-I{Path(grpc_tools.__file__).parent / '_proto'}"
        assert (
            protoc.main(["protoc", f"-I{work}", include, f"--descriptor_set_out={out}", "lockstep/wire/lockstep.proto"])
            == 0
        )
        fresh = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    committed = descriptor_pb2.FileDescriptorProto()
    lockstep_pb2.DESCRIPTOR.CopyToProto(committed)
    for file in (fresh, committed):
        file.ClearField("source_code_info")
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert committed == fresh, "run `python regenerate_wire.py`"
    stubs = {name.removesuffix("Servicer") for name in dir(lockstep_pb2_grpc) if name.endswith("Servicer")}
    assert stubs == {service.name for service in fresh.service}
    for service in fresh.service:
        servicer = getattr(lockstep_pb2_grpc, f"{service.name}Servicer")
        assert {method.name for method in service.method} == {
            name for name in dir(servicer) if not name.startswith("_")
        }
