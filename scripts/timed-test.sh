#!/usr/bin/env bash
# Runs a test program on the GPU that scripts/test.sh chose, and has it print each test's time:  scripts/timed-test.sh PROGRAM ARGS...
# Cargo uses it as the runner of test binaries (CARGO_TARGET_<TRIPLE>_RUNNER). Rust's stable test harness takes `--report-time` only with
# RUSTC_BOOTSTRAP, which is set here, where nothing is compiled; examples in documentation have no such option.
set -euo pipefail
# Whether no test is chosen.
[ $# != 1 ] && whole= || whole=1
case $1 in
    */deps/* | */examples/*)
        export RUSTC_BOOTSTRAP=1
        set -- "$@" -Zunstable-options --report-time
        ;;
esac
# What takes these programs long is the software driver's compiler, not what it compiles: for them it optimizes nothing. The others run optimized code.
# Where a processor has 16 vector registers, not 32, the driver's compiler takes minutes to spill those of attention, and that is so for all programs,
# but for models, serving and training in `it`: they run few kernels often.
run() {
    if [ -n "${TL_LAVAPIPE:-}" ]; then "$(dirname "$0")/with-lavapipe.sh" "$@"; else "$@"; fi
}
few_registers=
[ "$(uname -m)" != x86_64 ] || grep -qsw avx512f /proc/cpuinfo || few_registers=1
case ${1##*/}:$few_registers in
    differential-*:* | lesser_adapters-*:* | tuning-*:*) export GALLIVM_PERF=nopt ;;
    it-*:1)
        if [ -n "$whole" ]; then
            failed=0
            GALLIVM_PERF=nopt run "$@" --skip models:: --skip serving:: --skip train:: || failed=$?
            run "$@" models:: serving:: train:: || failed=$?
            exit $failed
        fi
        export GALLIVM_PERF=nopt
        ;;
    *:1) export GALLIVM_PERF=nopt ;;
esac
run "$@"
