#!/usr/bin/env bash
# Runs every test, including the GPU tests:  scripts/test.sh [ARGS of `cargo test`]
# On Linux the GPU is Mesa's lavapipe, which scripts/lavapipe.sh sets up first; elsewhere it is the machine's own.
# GPU tests fail if there is no adapter (TL_REQUIRE_GPU), and model tests fail without the model that `tl pull` downloads first. The last line sums up all test programs.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || { mkdir -p "$CARGO_TARGET_DIR" && CARGO_TARGET_DIR=$(cd "$CARGO_TARGET_DIR" && pwd); }
cd "$(dirname "$0")/.."

if [ "$(uname)" = Linux ]; then
    settings=$(scripts/lavapipe.sh --env)
    eval "$settings"
fi
export TL_REQUIRE_GPU=1
# Run small cases on the GPU, too; tests/cpu_fallback.rs turns the fallback on where it is tested.
export TL_ADAPTIVE=0

# tests/smollm2.rs fails without this model.
export TL_REQUIRE_MODEL=1
if [ -z "${TL_TEST_MODEL:-}" ]; then
    # The whole workspace, whose dependencies have the features that the tests need: they are compiled once.
    cargo build --release --quiet --workspace --bins
    TL_TEST_MODEL=$("${CARGO_TARGET_DIR:-target}/release/tl" pull --quiet smollm2-135m-instruct) || TL_TEST_MODEL=
    export TL_TEST_MODEL
fi

[ -t 1 ] && export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}
cargo test --release --workspace --no-fail-fast "$@" 2>&1 | awk '
    { print; fflush() }
    /test result: / { gsub(/\033\[[0-9;]*m/, ""); sub(/.*test result: [a-zA-Z]+\. /, ""); passed += $1; failed += $3; skipped += $5 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }'
