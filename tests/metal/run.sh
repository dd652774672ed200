#!/usr/bin/env bash
# Builds and runs the tests of the Metal backend over the fake Metal:  tests/metal/run.sh [CARGO COMMAND AND ARGUMENTS]
# Without arguments every test runs, in as many programs at once as there are cores, and shows what it prints.
# objc2-metal links the framework Metal on every system, which rustc refuses outside of Apple's: a copy of the crate, from where Cargo keeps it, has
# that line for Apple's systems only, and takes the crate's place in this build.
set -euo pipefail
cd "$(dirname "$0")"
out=$PWD/../../target/fake-metal
copy=$out/objc2-metal
if [ ! -d "$copy" ]; then
    version=$(sed -n '/^name = "objc2-metal"/{n;s/version = "\(.*\)"/\1/p}' ../../Cargo.lock)
    (cd ../.. && cargo fetch --quiet --locked --target aarch64-apple-darwin)
    from=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/objc2-metal-"$version" | head -n 1)
    mkdir -p "$out"
    cp -r "$from" "$copy.part"
    sed -i 's/^#\[link(name = "Metal", kind = "framework")\]/#[cfg_attr(target_vendor = "apple", link(name = "Metal", kind = "framework"))]/' "$copy.part/src/generated/mod.rs"
    mv "$copy.part" "$copy"
fi
# Warnings are errors, as elsewhere.
TL_CLANG=${TL_CLANG:-$(../../scripts/clang.sh)}
# A Vulkan driver, for the test of what stands in for a Metal that cannot be opened.
../../scripts/lavapipe.sh
export RUSTFLAGS="--cfg tensorlogic_fake_metal -Dwarnings ${RUSTFLAGS:-}" TL_CLANG
# What the library's own tests run on, small cases too.
export TL_TEST_DEVICE=metal TL_REQUIRE_GPU=1 TL_ADAPTIVE=0
# Besides those that run on every GPU: dense models with other embeddings, norms and heads, and one of states alone.
export TL_MODELS=${TL_MODELS-glm4-nobias,gpt_bigcode-mqa,mamba2-base,mistral-headdim,phi3-longrope,smollm3-nope}
# Archives of kernels go to the folders of the test about them.
export TL_PIPELINE_CACHE=0
with_copy() {
    local command=$1
    shift
    cargo "$command" --target-dir "$out" --config "patch.crates-io.objc2-metal.path=\"$copy\"" "$@"
}
if [ $# -gt 0 ]; then
    with_copy "$@"
    exit
fi
# Prints what a program printed in one piece, with each test's time, for which the stable test harness wants RUSTC_BOOTSTRAP. What tests print, such as
# how many models, dispatches and barriers they counted, stays; lists of names go.
whole() {
    local failed=0 printed name=${1##*/} others=()
    # All architectures on the CPU are the program `it`'s to test, which is optimized.
    case $name in models-*) others=(--skip supported_architectures_equal_transformers) ;; esac
    printed=$(RUSTC_BOOTSTRAP=1 "$1" ${others[@]+"${others[@]}"} --show-output -Zunstable-options --report-time 2>&1) || failed=1
    exec 9>"$TL_TEST_LOCK"
    flock 9
    printf '     Running tests/metal/%s (%s)\n%s\n\n' "${name%-*}" "$1" "$(sed -E '/^(successes:|    [a-z0-9_:]+|---- .* stdout ----|)$/d' <<<"$printed")"
    return $failed
}
export -f whole
with_copy test --locked --no-run
programs=$(CARGO_TERM_COLOR=never with_copy test --locked --no-run 2>&1 | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
[ -n "$programs" ] || { echo "cargo names no test program" >&2; exit 1; }
TL_TEST_LOCK=$(mktemp)
export TL_TEST_LOCK
failed=0
# The longest begin first, so that none of them ends alone.
long='/(models|self_test|vectors)-'
programs=$(grep -E "$long" <<<"$programs"; grep -Ev "$long" <<<"$programs")
xargs -P "$(nproc)" -I {} bash -c 'whole "$1"' _ {} <<<"$programs" || failed=1
rm -f "$TL_TEST_LOCK"
exit $failed
