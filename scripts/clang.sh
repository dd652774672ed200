#!/usr/bin/env bash
# Finds clang for the tests that execute Metal kernels on the CPU (tests/msl), and prints its path:  scripts/clang.sh
# Taken is TL_CLANG, else a clang++ of version 19 that is installed, else Debian's package, unpacked below target/clang: no root, nothing of
# the system changes. The package comes through the mirror and the keys that this machine's apt already uses. A second call does nothing.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
cd "$(dirname "$0")/.."
. scripts/packages.sh

version=19
root=${CARGO_TARGET_DIR:-$PWD/target}/clang
say() { echo "clang: $*" >&2; }

# Downloads what this machine lacks of the package, and unpacks it; the finished tree appears under its name in one step.
private_clang() {
    local work=$root.tmp
    unpack_packages "$work" "clang-$version" || return 1
    # The compiler finds its libraries beside itself, wherever it lies.
    cat >"$work/root/clang++" <<'WRAPPER'
#!/bin/sh
here=$(dirname "$0")
for lib in "$here"/usr/lib/*-linux-gnu "$here"/usr/lib/llvm-*/lib; do path=$path:$lib; done
LD_LIBRARY_PATH=${path#:} exec "$here"/usr/lib/llvm-*/bin/clang --driver-mode=g++ "$@"
WRAPPER
    chmod +x "$work/root/clang++"
    rm -rf "$root"
    mv "$work/root" "$root"
    rm -rf "$work"
}

for found in "${TL_CLANG:-}" "clang++-$version" "$root/clang++"; do
    if [ -n "$found" ] && found=$(command -v "$found"); then echo "$found"; exit; fi
done
private_clang || { rm -rf "$root.tmp"; say "please install clang-$version"; exit 1; }
"$root/clang++" --version >&2 || { rm -rf "$root"; exit 1; }
echo "$root/clang++"
