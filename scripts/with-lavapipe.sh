#!/usr/bin/env bash
# Runs a program on the software Vulkan driver that scripts/lavapipe.sh set up:  scripts/with-lavapipe.sh PROGRAM ARGS...
# Cargo uses it as the runner of test binaries (CARGO_TARGET_<TRIPLE>_RUNNER). TL_LAVAPIPE=system takes the system's Mesa.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
root=${TL_MESA_DIR:-${CARGO_TARGET_DIR:-$repo/target}/mesa}
export VK_DRIVER_FILES VK_LOADER_LAYERS_DISABLE='~implicit~'
if [ "${TL_LAVAPIPE:-private}" = private ] && [ -e "$root/version" ]; then
    VK_DRIVER_FILES=$(echo "$root"/usr/share/vulkan/icd.d/lvp_icd*.json)
    loader=$(echo "$root"/usr/lib/*-linux-gnu*/ld-linux*.so.*)
    libs=${loader%/*}
    # The driver needs a newer C library than the system's: the whole program runs on the one that came with it.
    program=$(command -v -- "$1")
    shift
    exec "$loader" --library-path "$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" --argv0 "$program" "$program" "$@"
fi
VK_DRIVER_FILES=$(echo /usr/share/vulkan/icd.d/lvp_icd*.json | cut -d' ' -f1)
exec "$@"
