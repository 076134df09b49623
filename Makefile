# Threads are pinned: the numeric pools of two crates and of test runners do not share two cores well.
export RAYON_NUM_THREADS ?= 1
export CANDLE_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

PARITY_VENV ?= target/parity-venv

.PHONY: check fix test browser bench parity proto demo-seeds false-alarms deny check-cuda build-cuda check-gpu kernels-reference
.PHONY: asan bench-kernels test-python real-torch real-trl real real-texts real-vllm crash bench-ledger fuzz openai bench-gateway bench-gateway-memory

## The read-only gate: format, lints, documentation.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p lockstep --no-default-features --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

## What can be fixed by rewriting.
fix:
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# The engine's tests: once with the fused operations, and once with candle's own, which a card runs.
ENGINE_TESTS := $(patsubst engine/tests/%.rs,--test %,$(wildcard engine/tests/*.rs))

## Every test. Fetches the Qwen3 tokenizer from npm once.
test:
	sh tests/setup.sh
	cargo build --workspace
	cargo test --workspace
	LOCKSTEP_DEVICE=plain cargo test --workspace $(ENGINE_TESTS)
	$(MAKE) check-cuda
	sh kernels/starts_anywhere.sh target/debug/lockstep
	$(MAKE) test-python
	$(MAKE) browser

## The report in a real browser, where there is one.
browser:
	sh tests/browser/run.sh

## Speed of the engine's loops, and of the kernels beside torch; compare rows of one run alone.
bench: bench-kernels
	cargo run --release -p lockstep-engine --example speed
	cargo run --release -p lockstep-engine --example training_speed

## The unmodified openai package (PyPI) against the gateway.
openai:
	sh tests/setup.sh
	cargo build --workspace
	sh tests/gateway/run.sh target/debug/lockstep

## Requests a second and latency of the gateway beside nginx and, where PyPI has them, smg and agentlightning; needs wrk.
bench-gateway:
	cargo build --profile dist -p lockstep --no-default-features
	python3 -m venv target/bench-venv
	-target/bench-venv/bin/pip install --quiet smg
	-target/bench-venv/bin/pip install --quiet agentlightning
	python3 tests/gateway/bench.py target/dist/lockstep

## The gateway's memory over a million requests, without and with its ledger; needs wrk and nginx.
bench-gateway-memory:
	cargo build --profile dist -p lockstep --no-default-features
	python3 tests/gateway/bench.py target/dist/lockstep memory

## Logits and gradients against torch and transformers (about 3 GB of Python packages).
parity: $(PARITY_VENV)/bin/python
	PARITY_VENV=$(PARITY_VENV) sh tests/parity/run.sh

## Generates the wire code from middleware/proto, without protoc.
proto:
	cargo run -p lockstep-tests --bin generate_proto

## The demo on seeds 1, 2 and 3, and what it must show.
demo-seeds:
	cargo build --release -p lockstep
	env -u RAYON_NUM_THREADS python3 tests/demo_seeds.py target/release/lockstep

## How often the suite is wrong about an honest pair, and right about a broken one.
false-alarms:
	cargo run --release -p lockstep-conformance --example false_alarms -- 1000
	cargo run --release -p lockstep-conformance --example detection -- 100

## A real llama-server, built from PyPI's llama-cpp-python (LLAMA_SERVER names one that is built already).
real:
	sh tests/real/llama.sh

## PyPI's llama_cpp.server, which reports raw log-probs and must be red (LLAMA_LIBRARY names a libllama that is built already).
real-texts:
	sh tests/real/texts.sh

## A real vLLM on the CPU: about 6 GB of Python packages, and minutes to start.
real-vllm:
	sh tests/real/vllm.sh

## Licences and advisories; needs cargo-deny.
deny:
	cargo deny check

## Every CUDA kernel through nvcc, ptxas and nvdisasm (from PyPI, about 450 MB); needs no GPU.
check-cuda:
	sh kernels/cuda/check.sh

## The second build, with the pair on a card, into target/cuda-build; needs no GPU and no toolkit. See kernels/README.md.
build-cuda:
	sh kernels/cuda/build.sh clippy --release -p lockstep-engine -p lockstep-kernels --features lockstep-engine/cuda,lockstep-kernels/cuda --all-targets -- -D warnings
	sh kernels/cuda/build.sh
	sh kernels/starts_anywhere.sh target/cuda-build/release/lockstep

## On a machine with an NVIDIA card: parity of every kernel, its time beside its floor, gpu.json. Without Rust there, copy
## kernels/check_gpu.sh and the program it is given.
check-gpu:
	sh kernels/cuda/build.sh build --release -p lockstep-kernels --features cuda --example check_gpu
	sh kernels/check_gpu.sh target/cuda-build/release/examples/check_gpu

## Supports and log-probs against a full sort in f64, draws against their report, and refusals, at full vocabulary.
kernels-reference:
	cargo build --release -p lockstep-kernels --example sample_report
	env -u RAYON_NUM_THREADS target/release/examples/sample_report reference 1000

## The CPU paths of the kernels under AddressSanitizer, on the stable toolchain, and a planted fault that it must name.
asan:
	sh kernels/asan.sh

## sample_report, and the head with its gradients, beside torch: that of `make parity` unless TORCH_PYTHON names a Python that
## has it. HEAD_ROWS=4096 wants 14 GB and minutes.
TORCH_PYTHON ?= $(PARITY_VENV)/bin/python
HEAD_ROWS ?= 4096
$(PARITY_VENV)/bin/python:
	python3 -m venv $(PARITY_VENV)
	$(PARITY_VENV)/bin/pip install -q -r tests/parity/requirements.txt || { rm -r $(PARITY_VENV); exit 1; }

bench-kernels: $(TORCH_PYTHON)
	cargo build --release -p lockstep-kernels --examples
	env -u OMP_NUM_THREADS $(TORCH_PYTHON) kernels/benches/sample_report.py target/release/examples/sample_report 2 64
	env -u OMP_NUM_THREADS $(TORCH_PYTHON) kernels/benches/head.py target/release/examples/head 2 $(HEAD_ROWS)

## The Python package without torch: golden vectors, client, types.
test-python:
	sh adapters/python/run-tests.sh

## The Python package with torch (3 GB): gradients, shards, snapshots, the probe.
real-torch:
	sh adapters/python/run-tests.sh torch

## TRL's own GRPOTrainer through the adapter, thirty steps on the CPU, Lockstep's engine as its sampler; the suite on that pair (3 GB).
real-trl:
	cargo build --release -p lockstep
	sh adapters/python/run-tests.sh trl
## kill -9 of a writer at 1,000 random moments.
crash:
	LOCKSTEP_CRASHES=1000 cargo test -p lockstep --no-default-features --test ledger_crash

## The ledger beside fio on the same disk: appends with sync, recovery, memory. Needs fio.
bench-ledger:
	cargo build --release -p lockstep --no-default-features --example ledger_speed
	sh tests/ledger/bench.sh target/release/examples/ledger_speed

## The ledger's frame reader under libFuzzer for ten minutes. Needs a C++ compiler.
fuzz:
	sh tests/ledger/fuzz.sh 600
