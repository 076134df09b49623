#!/bin/sh
# Opens sample reports in headless Chromium. Without one it says so and passes, unless LOCKSTEP_BROWSER=required.
set -eu
cd "$(dirname "$0")/../.."

if ! command -v chromium >/dev/null 2>&1; then
  echo "browser check not run: there is no chromium"
  [ "${LOCKSTEP_BROWSER:-}" != required ]
  exit
fi

reports=target/reports
mkdir -p "$reports"
LOCKSTEP_REPORT_DIR="$PWD/$reports" cargo test -q --workspace --lib report
for report in "$reports"/report-*.html; do
  node tests/browser/check.mjs "$report"
done
LOCKSTEP_REPORT_DIR="$PWD/$reports" cargo test -q -p lockstep-conformance --lib page
node tests/browser/conformance.mjs "$reports/conformance.html"
node tests/browser/conformance.mjs --self-test "$reports/conformance.html"
node tests/browser/check.mjs --self-test "$reports/report-12.html"
