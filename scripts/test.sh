#!/usr/bin/env bash
# Runs every test, the GPU's too:  scripts/test.sh [ARGS of `cargo test`]
# On Linux the GPU is Mesa's lavapipe, which scripts/lavapipe.sh sets up first; elsewhere it is the machine's own.
# A GPU test that finds no adapter fails (TL_REQUIRE_GPU), and so does a test without the model that `tl pull` gets first, once. The last line is the sum over all test programs.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || { mkdir -p "$CARGO_TARGET_DIR" && CARGO_TARGET_DIR=$(cd "$CARGO_TARGET_DIR" && pwd); }
cd "$(dirname "$0")/.."

if [ "$(uname)" = Linux ]; then
    settings=$(scripts/lavapipe.sh --env)
    eval "$settings"
fi
export TL_REQUIRE_GPU=1
# Small cases too shall run on the GPU; tests/adaptive.rs turns it on by itself.
export TL_ADAPTIVE=0

# The model of tests/smollm2.rs, which fail without it.
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
