#!/usr/bin/env bash
# Runs a test program on the GPU that scripts/test.sh chose, and has it print each test's time:  scripts/timed-test.sh PROGRAM ARGS...
# Cargo uses it as the runner of test binaries (CARGO_TARGET_<TRIPLE>_RUNNER). Rust's stable test harness takes `--report-time` only with
# RUSTC_BOOTSTRAP, which is set here, where nothing is compiled; examples in documentation have no such option.
set -euo pipefail
case $1 in
    */deps/* | */examples/*)
        export RUSTC_BOOTSTRAP=1
        set -- "$@" -Zunstable-options --report-time
        ;;
esac
# What takes these programs long is the software driver's compiler, not what it compiles: for them it optimizes nothing. The others run optimized code.
# Where a processor has 16 vector registers, not 32, the driver's compiler takes minutes to spill those of attention, and that is so for all programs.
case ${1##*/} in differential-* | lesser_adapters-* | tuning-*) export GALLIVM_PERF=nopt ;; esac
if [ "$(uname -m)" = x86_64 ] && ! grep -qsw avx512f /proc/cpuinfo; then
    export GALLIVM_PERF=nopt
fi
[ -z "${TL_LAVAPIPE:-}" ] || exec "$(dirname "$0")/with-lavapipe.sh" "$@"
exec "$@"
