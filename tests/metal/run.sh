#!/usr/bin/env bash
# Builds and runs the tests of the Metal backend over the fake Metal:  tests/metal/run.sh [CARGO COMMAND AND ARGUMENTS]
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
export RUSTFLAGS="--cfg tensorlogic_fake_metal ${RUSTFLAGS:-}" TL_CLANG=${TL_CLANG:-$(../../scripts/clang.sh)}
# What the library's own tests run on, small cases too.
export TL_TEST_DEVICE=metal TL_REQUIRE_GPU=1 TL_ADAPTIVE=0
# Archives of kernels go to the folders of the test about them.
export TL_PIPELINE_CACHE=0
[ $# -gt 0 ] || set -- test --no-fail-fast
command=$1
shift
exec cargo "$command" --target-dir "$out" --config "patch.crates-io.objc2-metal.path=\"$copy\"" "$@"
