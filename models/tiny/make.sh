#!/usr/bin/env bash
# Makes tiny.gguf and what stands beside it:  models/tiny/make.sh INPUT RUN [FLAGS of `tl train`]
# INPUT is Tiny Shakespeare (its SHA-256 is checked), RUN the folder of the training run. A run that has begun goes on; on an H100 the whole
# of it is one command:  models/tiny/make.sh input.txt run --device gpu
set -euo pipefail
input=$(realpath "$1")
run=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
tl=${TL:-$here/../../target/release/tl}
[ -x "$tl" ] || { echo "make.sh: build tl first (cargo build --release -p tensorlogic-cli), or name it in TL" >&2; exit 1; }

echo "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed  $input" | sha256sum --check --quiet
mkdir -p "$(dirname "$run")"
"$tl" train "$input" -o "$run" --config "$here/../../recipes/shakespeare_char.toml" --resume "$@" 2>&1 | tee -a "$run.log"
"$tl" quantize "$run" "$here/tiny.gguf" --type q5_0
cp "$run/loss.csv" "$run/loss.svg" "$here/"
# Without the folders of the machine it ran on.
for name in train.toml train.log; do
    from=$([ $name = train.log ] && echo "$run.log" || echo "$run/$name")
    sed "s|$(dirname "$input")/||g; s|$run|run|g" "$from" > "$here/$name"
done
wc -c < "$here/tiny.gguf"
sha256sum "$here/tiny.gguf"
