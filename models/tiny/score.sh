#!/usr/bin/env bash
# Scores 50 samples of tiny under SmolLM2-135M beside held-out text of its corpus:  models/tiny/score.sh INPUT [FOLDER]
# INPUT is Tiny Shakespeare, whose last tenth tiny has not seen. Samples and excerpts are of the same number of characters, and each is scored by
# itself. Prints the mean nats a token of both and their difference. Samples are drawn at the temperature TEMP, 0.5 if it is not set.
set -euo pipefail
input=$1
folder=${2:-$(mktemp -d)}
here=$(cd "$(dirname "$0")" && pwd)
tl=${TL:-$here/../../target/release/tl}
temp=${TEMP:-0.5}
judge=${JUDGE:-smollm2-135m-instruct}
model=${MODEL:-$here/tiny.gguf}
count=50 length=240
mkdir -p "$folder"

size=$(wc -c < "$input")
start=$((size * 9 / 10))
step=$(((size - start - length) / count))
for i in $(seq 1 $count); do
    # The sample begins after a line break, which is not part of it; so does the excerpt.
    "$tl" generate -m "$model" --raw --quiet --temp "$temp" --seed "$i" -n $length -p $'\n' | head -c $length > "$folder/sample-$i.txt"
    tail -c +$((start + (i - 1) * step)) "$input" | { read -r _; head -c $length; } > "$folder/held-out-$i.txt" || true
done
nats() { "$tl" perplexity -m "$judge" --quiet --json -f "$@" | sed -n 's/.*"mean_nll":\([-0-9.e]*\).*/\1/p'; }
samples=$(nats "$folder"/sample-*.txt)
held_out=$(nats "$folder"/held-out-*.txt)
awk -v s="$samples" -v h="$held_out" 'BEGIN { printf "samples %.4f, held out %.4f, difference %.4f nats a token\n", s, h, s - h }'
