#!/bin/sh
# Fuzzes the ledger's frame reader with libFuzzer on the stable toolchain. Needs a C++ compiler.
#
#     sh tests/ledger/fuzz.sh [SECONDS]
set -eu

seconds=${1:-600}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$root/target/fuzz
mkdir -p "$work/corpus"

# Only what is looked at is instrumented; everything else is compiled as it always is.
cat >"$work/rustc" <<'SH'
#!/bin/sh
case " $* " in
*" --crate-name lockstep "* | *" --crate-name lockstep_core "* | *" --crate-name frame_reader "*)
    exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1
    ;;
*) exec "$@" ;;
esac
SH
chmod +x "$work/rustc"
cd "$root/middleware/fuzz"
RUSTC_WRAPPER=$work/rustc CARGO_TARGET_DIR=$root/target cargo build --bin frame_reader
exec nice -n 15 "$root/target/debug/frame_reader" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$work/" "$work/corpus" "$root/tests/ledger/seeds"
