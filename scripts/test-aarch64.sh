#!/usr/bin/env bash
# Runs the CPU's tests for 64-bit Arm, compiled for Linux and executed under emulation (qemu-user):  scripts/test-aarch64.sh [--quick]
#
# A standard library that is missing comes by rustup; a linker, a C library and qemu that are missing are unpacked below target/aarch64: no root,
# nothing of the system changes. On a 64-bit Arm machine the tests run without emulation. The paths that a processor lacks are left out of its
# run, so there are three: one with every instruction that a kernel asks for, one with NEON's dot product only, and one with neither.
#
# --quick, for .ci/run: what is not this library is compiled without optimization, and only the kernels with instructions of Arm's are tested.
# Where the standard library cannot be had it says `not checked: ...` and ends well, as `cargo xtask check-targets --allow-missing` does.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
cd "$(dirname "$0")/.."
. scripts/packages.sh

target=aarch64-unknown-linux-gnu
root=${CARGO_TARGET_DIR:-$PWD/target}/aarch64
say() { echo "test-aarch64: $*" >&2; }
quick=
[ "${1:-}" != --quick ] || quick=1

# Downloads what this machine lacks of the packages, and unpacks it; the finished tree appears under its name in one step.
private_tools() {
    local work=$root.tmp
    unpack_packages "$work" gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static || return 1
    find "$work/root/usr/bin" -name 'qemu-*' ! -name qemu-aarch64-static -delete
    # The compiler finds its parts beside itself, wherever it lies.
    cat >"$work/root/gcc" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
for lib in "$here"/usr/lib/*-linux-gnu; do LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; done
export LD_LIBRARY_PATH
exec "$here/usr/bin/aarch64-linux-gnu-gcc" --sysroot="$here" "$@"
WRAPPER
    chmod +x "$work/root/gcc" && rm -rf "$root" && mv "$work/root" "$root" || return 1
    rm -rf "$work"
}

if ! rustc --print target-libdir --target $target | xargs test -d && ! timeout 60 rustup target add $target >&2; then
    say "no standard library for $target"
    [ -n "$quick" ] || exit 1
    echo "not checked: $target: its standard library cannot be had"
    exit
fi
emulators=(max cortex-a76 cortex-a72)
if [ "$(uname -m)" = aarch64 ]; then
    emulators=(native)
elif command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64-static >/dev/null && [ -d /usr/aarch64-linux-gnu/include ]; then
    qemu=qemu-aarch64-static
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
else
    [ -x "$root/gcc" ] || private_tools || { rm -rf "$root.tmp"; say "please install gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static"; exit 1; }
    qemu=$root/usr/bin/qemu-aarch64-static
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$root/gcc QEMU_LD_PREFIX=$root/usr/aarch64-linux-gnu
fi

# Without the GPU backend, which has tests of its own: that halves what is compiled. --quick uses the profile of .ci/run, which has built the
# macros; gemm-f16 has instructions that are only accepted once its functions are inlined.
build=(cargo test --locked --lib --no-default-features --package tensorlogic --target $target --no-run --message-format json)
if [ -n "$quick" ]; then
    build+=(--release)
    for level in '"*".opt-level=0' gemm-f16.opt-level=1 tensorlogic.opt-level=1; do build+=(--config "profile.release.package.$level"); done
fi
began=$SECONDS
program=$("${build[@]}" | sed -n 's/.*"executable":"\([^"]*\/deps\/tensorlogic-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { say "no test program was built"; exit 1; }
say "built: $((SECONDS - began)) s"

# Which instructions each processor has decides what is run there. Threads of an emulated processor wait for each other for long.
run() {
    local processor=$1 began=$SECONDS
    shift
    if [ "$processor" = native ]; then "$program" "$@"; else TL_TEST_EMULATED=$processor "$qemu" -cpu "$processor" "$program" "$@"; fi
    say "$processor: $((SECONDS - began)) s"
}

if [ -n "$quick" ]; then
    run "${emulators[0]}" backends::cpu::dot products_bf16 products::block_formats products::products_that rows::softmax maps::runs_of maps::copies maps::casts
    for processor in "${emulators[@]:1}"; do run "$processor" a_processor_has_the_paths; done
    exit
fi
# Three tests of products of many sizes are most of the time under emulation; `TL_TEST_ALL=1` runs them too.
slow=(--skip products::matmul_matches_f64 --skip products::products_of_blocks_match_f64 --skip products::a_row_has_the_same_bits)
[ -z "${TL_TEST_ALL:-}" ] || slow=()
run "${emulators[0]}" backends::cpu --skip thread_count "${slow[@]}"
for processor in "${emulators[@]:1}"; do
    run "$processor" backends::cpu::dot
done
