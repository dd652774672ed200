#!/usr/bin/env bash
# Runs a test program on the GPU that scripts/test.sh chose, and has it print each test's time:  scripts/timed-test.sh PROGRAM ARGS...
# Cargo uses it as the runner of test binaries (CARGO_TARGET_<TRIPLE>_RUNNER). Rust's stable test harness takes `--report-time` only with
# RUSTC_BOOTSTRAP, which is set here, where nothing is compiled; examples in documentation have no such option.
#
# The software driver compiles a kernel when it first runs, one at a time within a process. So a program's tests run in groups, a process each and as
# many at once as there are cores: each module in two, or what has no modules in four. Where TL_TEST_QUEUE names a folder they are put there, a script
# each, and so is a command by  scripts/timed-test.sh --add COMMAND ARGS...;  scripts/timed-test.sh --queue  runs what is there, long programs first.
set -euo pipefail
timed_test=$(cd "$(dirname "$0")" && pwd)/${0##*/}
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
    if [ -n "${TL_LAVAPIPE:-}" ]; then "${timed_test%/*}/with-lavapipe.sh" "$@"; else "$@"; fi
}
# Prints what a command prints, in one piece; where programs run beside each other, behind a line that names this one.
in_one_piece() {
    local failed=0 printed name=$1
    shift
    printed=$(unset TL_TEST_QUEUE && "$@" 2>&1) || failed=1
    exec 9>"$TL_TEST_LOCK"
    flock 9
    [ -z "${TL_TEST_QUEUE:-}" ] || printf '     Running %s\n' "$name"
    printf '%s\n\n' "$printed"
    return $failed
}
# What a program is called, without the hash behind it.
name_of() {
    local name=${1##*/}
    echo "${name%-*}"
}
# Puts a command of this program into the queue, with its environment and folder.
enqueue() {
    local name place=5 file
    name=$(name_of "$program")
    # By the time that programs take: what begins last shall end soon.
    case $name in
        native_metal | cargo) place=0 ;;
        msl | it | tensorlogic) place=1 ;;
        differential | distributed | seeds | serving | training*) place=2 ;;
    esac
    file=$(mktemp "$TL_TEST_QUEUE/$place-$name-XXXXXX")
    { export -p && printf 'cd %q\nexec' "$PWD" && printf ' %q' "$timed_test" "$@" && echo; } >"$file"
}
# Runs what is in the queue.
run_queue() {
    local failed=0
    TL_TEST_LOCK=$(mktemp)
    export TL_TEST_LOCK
    find "$TL_TEST_QUEUE" -type f | sort | xargs -P "$(nproc)" -n 1 bash || failed=1
    rm -f "$TL_TEST_LOCK"
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
    local group queue=${TL_TEST_QUEUE:-}
    # Without a queue of all programs they have one of their own, which what is put there does not see.
    if [ -z "$queue" ]; then
        local TL_TEST_QUEUE
        TL_TEST_QUEUE=$(mktemp -d)
    fi
    # Names have no spaces.
    # shellcheck disable=SC2086
    while read -r group; do enqueue --group "$program" $group; done <<<"$names"
    [ -z "$queue" ] || return 0
    run_queue || failed=1
    rm -rf "$TL_TEST_QUEUE"
    return $failed
}
case $program in
    --group)
        program=$2
        shift 2
        in_one_piece "$(name_of "$program")" run "$program" --exact "$@"
        exit
        ;;
    --whole)
        shift
        in_one_piece "$(name_of "$1")" "$@"
        exit
        ;;
    # A command that runs no test program by itself.
    --add)
        shift
        program=$1
        enqueue --whole "$@"
        exit
        ;;
    --queue)
        run_queue
        exit
        ;;
esac
# The programs of the Metal backend are processes of their own, whose tests are counted with the others.
case ${program##*/} in
    native_metal-*)
        export RUST_TEST_NOCAPTURE=1
        [ -n "${TL_TEST_QUEUE:-}" ] || exec "$@"
        enqueue --whole "$program"
        exit
        ;;
esac
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
        # On a machine that is much slower than others all of these: the differential test, that of devices and the command's tests keep the GPU.
        [ -z "${TL_SLOW_MACHINE:-}" ] || case ${program##*/} in it-* | tensorlogic-*) on_cpu=. ;; esac
    fi
fi
failed=0
in_groups "!/${on_cpu//\//\\/}/" || failed=1
if [ "$on_cpu" != '^$' ]; then
    echo "not on the software GPU, since this processor has no AVX-512${TL_SLOW_MACHINE:+ and is slow}: the tests of ${program##*/} that match $on_cpu"
    TL_TEST_DEVICE=cpu in_groups "/${on_cpu//\//\\/}/" || failed=1
fi
exit $failed
