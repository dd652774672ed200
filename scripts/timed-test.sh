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
case ${1##*/} in differential-* | lesser_adapters-* | tuning-*) export GALLIVM_PERF=nopt ;; esac
run() {
    if [ -n "${TL_LAVAPIPE:-}" ]; then "$(dirname "$0")/with-lavapipe.sh" "$@"; else "$@"; fi
}
# Where a processor has 16 vector registers, not 32, that compiler takes minutes to spill those of attention, whatever program asks for it, and without
# optimization models run three times as slowly. There the programs that would take longest use the CPU alone, and say so; TL_SLOW_GPU=1 runs them whole.
if [ -n "${TL_LAVAPIPE:-}" ] && [ "$(uname -m)" = x86_64 ] && ! grep -qsw avx512f /proc/cpuinfo; then
    export GALLIVM_PERF=nopt
    if [ -z "${TL_SLOW_GPU:-}" ]; then
        case ${1##*/} in
            bench-* | lesser_adapters-* | memory-* | optimizers-* | seeds-* | serving-* | strategies-* | training-* | training_run-* | tuning-*)
                echo "not on the software GPU, since this processor has no AVX-512: ${1##*/}"
                export TL_TEST_DEVICE=cpu
                ;;
            it-*) on_cpu=(serving:: train::) ;;
            # Half of all compiling is that of a few kernels: the differential test and the models have them run there.
            tensorlogic-*) on_cpu=(ops::attention:: ops::expert_matmul:: ops::matmul:: ops::reduce::) ;;
        esac
        if [ -n "$whole" ] && [ -n "${on_cpu:-}" ]; then
            failed=0
            run "$@" "${on_cpu[@]/#/--skip=}" || failed=$?
            echo "not on the software GPU, since this processor has no AVX-512: ${on_cpu[*]}"
            TL_TEST_DEVICE=cpu run "$@" "${on_cpu[@]}" || failed=$?
            exit $failed
        fi
    fi
fi
run "$@"
