#!/usr/bin/env bash
# Runs every test, the GPU's too, on Linux also those of the Metal backend:  scripts/test.sh [ARGS of `cargo test`]
# The GPU under test is TL_TEST_DEVICE: a name as `tl --device` takes it, `cpu` for none, or `lavapipe` for Mesa's software driver, which
# scripts/lavapipe.sh sets up first. Unset, it is the machine's GPU; on Linux without one, or where CI is set, it is lavapipe.
# On Linux and macOS a GPU test that finds no adapter fails, and everywhere a test without the two models that are fetched first, once.
# At the end come the ten slowest tests and the sum over all test programs.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || { mkdir -p "$CARGO_TARGET_DIR" && CARGO_TARGET_DIR=$(cd "$CARGO_TARGET_DIR" && pwd); }
cd "$(dirname "$0")/.."

# Whether Linux has a GPU and a Vulkan driver that is not software.
has_gpu() {
    local file
    ls /dev/dri/renderD* /dev/nvidia[0-9]* >/dev/null 2>&1 || return 1
    for file in {/etc,/usr/share,/usr/local/share}/vulkan/icd.d/*.json; do
        case $file in *lvp_icd* | */\*.json) ;; *) return 0 ;; esac
    done
    return 1
}

system=$(uname)
if [ -z "${TL_TEST_DEVICE:-}" ]; then
    case $system in
        Linux) { [ -z "${CI:-}" ] && has_gpu; } || TL_TEST_DEVICE=lavapipe ;;
        Darwin) TL_TEST_DEVICE=metal ;;
    esac
fi
if [ "${TL_TEST_DEVICE:-}" = lavapipe ]; then
    settings=$(scripts/lavapipe.sh --env)
    eval "$settings"
    TL_TEST_DEVICE=vulkan
fi
[ -z "${TL_TEST_DEVICE:-}" ] || export TL_TEST_DEVICE
[ "$system" != Linux ] || export TL_REQUIRE_GPU=1
echo "GPU under test: ${TL_TEST_DEVICE:-that of the machine}${TL_LAVAPIPE:+, by lavapipe}"
# The tests that execute Metal kernels on the CPU need a compiler; a machine that is to run every test has it.
if [ "$system" = Linux ]; then
    TL_CLANG=$(scripts/clang.sh)
    export TL_CLANG TL_REQUIRE_MSL=1
fi
# The tests of training on several ranks need a launcher; a machine that is to run every test has it.
if [ "$system" = Linux ]; then
    TL_TEST_MPI=$(scripts/mpi.sh)
    export TL_TEST_MPI TL_REQUIRE_MPI=1
fi
# Small cases too shall run on the GPU; tests/cpu_fallback.rs turns the CPU's help on by itself.
export TL_ADAPTIVE=0

# The model of tests/it/models/smollm2.rs, which fail without it.
export TL_REQUIRE_MODEL=1
if [ -z "${TL_TEST_MODEL:-}" ]; then
    # The whole workspace, whose dependencies have the features that the tests need: they are compiled once.
    cargo build --release --quiet --workspace --bins
    TL_TEST_MODEL=$("${CARGO_TARGET_DIR:-target}/release/tl" pull --quiet smollm2-135m-instruct) || TL_TEST_MODEL=
    export TL_TEST_MODEL
fi
# That of tests/it/models/encoders.rs.
[ -n "${TL_TEST_MINILM:-}" ] || TL_TEST_MINILM=$(scripts/minilm.sh) || TL_TEST_MINILM=
export TL_TEST_MINILM

[ -t 1 ] && export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}
# Each test's time; on Windows cargo can start no script.
case $system in
    Linux | Darwin)
        triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
        export "CARGO_TARGET_${triple}_RUNNER=$PWD/scripts/timed-test.sh"
        ;;
esac
printed=$(mktemp)
queue=$(mktemp -d)
trap 'rm -rf "$printed" "$queue"' EXIT
tests() {
    local failed=0
    # A choice of tests, a GPU of which one process at a time is asked for, or none: one program behind another.
    if [ -z "${TL_LAVAPIPE:-}" ] || [ "${*#--locked}" ]; then
        cargo test --release --workspace --no-fail-fast "$@"
        return
    fi
    # The runner puts the tests of all programs into one queue; examples in documentation are compiled as they run.
    export TL_TEST_QUEUE=$queue
    cargo test --release --workspace --no-fail-fast --tests "$@" || failed=1
    scripts/timed-test.sh --add cargo test --release --workspace --no-fail-fast --doc "$@"
    scripts/timed-test.sh --queue || failed=1
    return $failed
}
status=0
tests "$@" 2>&1 | tee "$printed" || status=$?
awk '
    { gsub(/\033\[[0-9;]*m/, "") }
    / Running / { program = $0; sub(/ *Running (unittests )?/, "", program); sub(/ \(.*/, "", program) }
    /^test .* <[0-9.]+s>/ { seconds = $NF; gsub(/[<>s]/, "", seconds); took[program ": " $2] = seconds + 0 }
    /test result: / { sub(/.*test result: [a-zA-Z]+\. /, ""); passed += $1; failed += $3; skipped += $5 }
    END {
        for (n = 0; n < 10; n++) {
            slowest = ""
            for (test in took) if (slowest == "" || took[test] > took[slowest]) slowest = test
            if (slowest == "") break
            printf "%9.1f s  %s\n", took[slowest], slowest
            delete took[slowest]
        }
        printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    }' "$printed"
exit $status
