#!/usr/bin/env bash
# Runs the CPU's tests for 64-bit Arm, compiled for Linux and executed under emulation (qemu-user):  scripts/test-aarch64.sh
#
# On a Debian-like machine it first installs what is missing: the target's standard library (rustup), a linker, a C library and
# qemu (apt-get, as root). On a 64-bit Arm machine the tests run without emulation. The paths that a processor lacks are left
# out of its run, so there are three: one with every instruction that a kernel asks for, one with NEON's dot product only, and
# one with neither.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
say() { echo "test-aarch64: $*" >&2; }

# Installs packages that are missing.
packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} != 0 ] || return 0
    [ "$(id -u)" = 0 ] || { say "please install ${missing[*]} (apt-get, as root)"; return 1; }
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    local install=(apt-get install -qq -y --no-install-recommends "${missing[@]}")
    "${install[@]}" >/dev/null 2>&1 || { apt-get update -qq >&2 && "${install[@]}" >/dev/null; } ||
        { say "${missing[*]} cannot be installed"; return 1; }
}

rustc --print target-libdir --target $target | xargs test -d || rustup target add $target >&2 || { say "no standard library for $target"; exit 1; }
emulators=(max cortex-a76 cortex-a72)
if [ "$(uname -m)" = aarch64 ]; then
    emulators=(native)
else
    packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
fi

# Without the GPU backend, which has tests of its own: that halves what is compiled.
build=(cargo test --locked --lib --no-default-features --package tensorlogic --target $target --no-run --message-format json)
program=$("${build[@]}" | sed -n 's/.*"executable":"\([^"]*\/deps\/tensorlogic-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { say "no test program was built"; exit 1; }

# Which instructions each processor has decides what is run there. Threads of an emulated processor wait for each other for long.
run() {
    local processor=$1 began=$SECONDS
    shift
    if [ "$processor" = native ]; then "$program" "$@"; else TL_TEST_EMULATED=$processor qemu-aarch64-static -cpu "$processor" "$program" "$@"; fi
    say "$processor: $((SECONDS - began)) s"
}

# Three tests of products of many sizes are most of the time under emulation; `TL_TEST_ALL=1` runs them too.
slow=(--skip products::matmul_matches_f64 --skip products::products_of_blocks_match_f64 --skip products::a_row_has_the_same_bits)
[ -z "${TL_TEST_ALL:-}" ] || slow=()
run "${emulators[0]}" backends::cpu --skip thread_count "${slow[@]}"
for processor in "${emulators[@]:1}"; do
    run "$processor" backends::cpu::dot
done
