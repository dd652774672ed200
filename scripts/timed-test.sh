#!/usr/bin/env bash
# Runs a test program on the GPU that scripts/test.sh chose, and has it print each test's time:  scripts/timed-test.sh PROGRAM ARGS...
# Cargo uses it as the runner of test binaries (CARGO_TARGET_<TRIPLE>_RUNNER). Rust's stable test harness takes `--report-time` only with
# RUSTC_BOOTSTRAP, which is set here, where nothing is compiled; examples in documentation have no such option.
#
# The software driver compiles a kernel when it first runs, one at a time within a process. So a program's tests run in groups, a process each and as
# many at once as there are cores: each module in two, or what has no modules in four.
set -euo pipefail
# Whether no test is chosen.
[ $# != 1 ] && whole= || whole=1
program=$1
# What takes these programs long is the software driver's compiler, not what it compiles: for them it optimizes nothing. The others run optimized code.
case ${program##*/} in differential-* | lesser_adapters-* | tuning-*) export GALLIVM_PERF=nopt ;; esac
run() {
    case $1 in
        */deps/* | */examples/*)
            export RUSTC_BOOTSTRAP=1
            set -- "$@" -Zunstable-options --report-time
            ;;
    esac
    if [ -n "${TL_LAVAPIPE:-}" ]; then "$(dirname "$0")/with-lavapipe.sh" "$@"; else "$@"; fi
}
# Runs tests by their names, with what was printed in one piece.
group() {
    local failed=0 printed
    printed=$(run "$program" --exact "$@" 2>&1) || failed=1
    exec 9>"$TL_TEST_LOCK"
    flock 9
    printf '%s\n\n' "$printed"
    return $failed
}
# Runs all tests that an awk condition on their names selects.
in_groups() {
    local names failed=0
    names=$(run "$program" --list --format terse | sed -n 's/: test$//p' | awk -F:: "$1"' {
        module = NF > 2 ? $1 "::" $2 : NF > 1 ? $1 : ""
        key = module " " count[module]++ % (NF > 1 ? 2 : 4)
        if (!(key in tests)) order[++n] = key
        tests[key] = tests[key] " " $0
    } END { for (i = 1; i <= n; i++) print tests[order[i]] }') || return 1
    [ -n "$names" ] || return 0
    TL_TEST_LOCK=$(mktemp)
    export TL_TEST_LOCK
    xargs -P "$(nproc)" -L 1 "$0" --group "$program" <<<"$names" || failed=1
    rm -f "$TL_TEST_LOCK"
    return $failed
}
if [ "$program" = --group ]; then
    program=$2
    shift 2
    group "$@"
    exit
fi
# The programs of the Metal backend are processes of their own, whose tests are counted with the others.
case ${program##*/} in native_metal-*) RUST_TEST_NOCAPTURE=1 exec "$@" ;; esac
if [ -z "$whole" ] || [ -z "${TL_LAVAPIPE:-}" ]; then
    run "$@"
    exit
fi
# Where a processor has 16 vector registers, not 32, that compiler takes minutes to spill those of attention, whatever program asks for it, and without
# optimization models run three times as slowly. There the programs that would take longest use the CPU alone, and say so; TL_SLOW_GPU=1 runs them whole.
on_cpu='^$'
if [ "$(uname -m)" = x86_64 ] && ! grep -qsw avx512f /proc/cpuinfo; then
    export GALLIVM_PERF=nopt
    # The limit on the seconds of one random graph is that of a processor with AVX-512.
    export TL_DIFFERENTIAL_SLOWEST=0
    if [ -z "${TL_SLOW_GPU:-}" ]; then
        case ${program##*/} in
            bench-* | lesser_adapters-* | lora-* | memory-* | optimizers-* | seeds-* | serving-* | strategies-* | training-* | training_run-* | tuning-*)
                on_cpu=.
                ;;
            it-*) on_cpu='^(serving|train)::|^autograd::attention_dropout::|^models::(smollm2|stages|strategies|tiny)::' ;;
            # Half of all compiling is that of a few kernels: the differential test and the models have them run there.
            tensorlogic-*) on_cpu='^ops::(attention|expert_matmul|matmul|reduce)::' ;;
        esac
    fi
fi
failed=0
in_groups "!/${on_cpu//\//\\/}/" || failed=1
if [ "$on_cpu" != '^$' ]; then
    echo "not on the software GPU, since this processor has no AVX-512: the tests of ${program##*/} that match $on_cpu"
    TL_TEST_DEVICE=cpu in_groups "/${on_cpu//\//\\/}/" || failed=1
fi
exit $failed
