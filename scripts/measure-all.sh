#!/usr/bin/env bash
# One table of every strategy, buffer order, defragmentation, cache technique and type of weights, before and after, with verdicts.
#
#     scripts/measure-all.sh TL DEVICE [MODEL…] > table.md
#
# TL is a built `tl`. A MODEL is a GGUF file, or SHAPE:TYPE or SHAPE:TYPE:SEQUENCES of random weights, such as gpt2-124m:f16:64 (default:
# models/tiny/tiny.gguf gpt2-124m:f16). Only files, which have a vocabulary, have a perplexity. Nothing is downloaded. What finds no time is
# listed as such.
#
#     SECONDS_AT_MOST   of all of it (860 with device cpu, else 520)
#     RUNS, TOKENS      of each strategy (9 and 32 with device cpu, else 15 and 128)
#     QUICK=1           small sizes and few runs: whether everything works
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 2 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
tl=$(realpath "$1") device=$2
shift 2
[ $# -gt 0 ] || set -- "$root/models/tiny/tiny.gguf" gpt2-124m:f16
case $device in
    cpu*) most=860 runs=9 tokens=32 ;;
    *) most=520 runs=15 tokens=128 ;;
esac
most=${SECONDS_AT_MOST:-$most} runs=${RUNS:-$runs} tokens=${TOKENS:-$tokens} prompt=64 dtype_tokens=32 rounds=7 text_tokens=1024 quick=()
[ -z "${QUICK:-}" ] || { runs=7 tokens=8 prompt=8 dtype_tokens=4 rounds=5 text_tokens=128 quick=(--quick); }
export TL_DEVICE=$device TL_OFFLINE=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat "$root"/docs/guide/*.md >"$folder/text.txt"
skipped=()

# Runs a command of tl in the time that is left, its output to $folder/out; false where it failed or was cut off.
measure() {
    local what=$1 left=$((most - SECONDS))
    shift
    echo "$SECONDS s: $what" >&2
    if [ "$left" -lt 5 ]; then
        skipped+=("$what: no time was left")
        return 1
    fi
    timeout -k 5 "$left" "$tl" "$@" >"$folder/out" 2>"$folder/err" && return 0
    local code=$?
    if [ $code = 124 ]; then skipped+=("$what: no time was left"); else skipped+=("$what: $(tail -n 1 "$folder/err")"); fi
    return 1
}

# The functions that every table uses: fields of a JSON line, times, bytes and rows.
awk_functions='
function text(line, key) { return match(line, "\"" key "\":\"[^\"]*\"") ? substr(line, RSTART + length(key) + 4, RLENGTH - length(key) - 5) : "" }
function value(line, key) { return match(line, "\"" key "\":[-+0-9.eE]+") ? substr(line, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 : "" }
function time(s) { return s >= 1 ? sprintf("%.3g s", s) : s >= 1e-3 ? sprintf("%.4g ms", 1e3 * s) : sprintf("%.4g µs", 1e6 * s) }
function whole(n,   s) { s = sprintf("%d", n); while (match(s, /^[0-9]+[0-9][0-9][0-9](,|$)/)) { match(s, /^[0-9]+/); s = substr(s, 1, RLENGTH - 3) "," substr(s, RLENGTH - 2) }; return s }
function ratio(a, b) { return b > 0 ? sprintf("%.2f", a / b) : "" }
function row(what, work, a, b, part, verdict) { printf "| %s | %s | %s | %s | %s | %s |\n", what, work, a, b, part, verdict }
function bytes(what, work, a, b, bound) {
    row(what, work " bytes", whole(a), whole(b), ratio(a, b), (b < a ? "fewer" : b > a ? "more" : "no difference") (bound != "" && b == bound ? ", the bound" : ""))
}
'
table() { awk -v work="$1" "$awk_functions $2" "$folder/out"; }

# The name of a model, and the file that has it: random weights are written first.
name_of() { case $1 in *.gguf) basename "$1" .gguf ;; *) echo "$1" | awk -F: '{ printf "%s %s%s", $1, $2, $3 ? ", " $3 " sequences" : "" }' ;; esac; }
file_of() { case $1 in *.gguf) echo "$1" ;; *) echo "$folder/$(echo "$1" | cut -d: -f1,2).gguf" ;; esac; }
for model in "$@"; do
    case $model in
        *.gguf) [ -e "$model" ] || { echo "measure-all: there is no $model" >&2; exit 2; } ;;
        *:*)
            file=$(file_of "$model")
            [ -e "$file" ] || measure "weights of $model" bench decode --shape "${model%%:*}" --type "$(echo "$model" | cut -d: -f2)" --write "$file" -q ||
                { echo "measure-all: $(tail -n 1 "$folder/err")" >&2; exit 1; }
            ;;
        *) echo "measure-all: $model is neither FILE.gguf nor SHAPE:TYPE" >&2; exit 2 ;;
    esac
done

if measure "device" bench run --category independent --quick --json; then
    echo "$("$tl" --version), $(awk "$awk_functions"' NR == 1 { print text($0, "device") }' "$folder/out"), $(date -u +%F)"
    echo
fi
echo '| what | work | before | after | ratio | verdict |'
echo '|---|---|---|---|---|---|'

for model in "$@"; do
    sequences=$(echo "$model:::" | cut -d: -f3)
    case $model in *.gguf) sequences= ;; esac
    measure "strategies, $(name_of "$model")" bench decode -m "$(file_of "$model")" -p "$prompt" -n "$tokens" -r "$runs" -s "${sequences:-1}" \
        --strategy all --json -q || continue
    table "$(name_of "$model")" '{
        if (!/"tokens_equal":true/) row("strategies", work, "", "", "", "tokens equal but for rounding")
        n = split($0, part, "{\"metric\":")
        for (i = 2; i <= n; i++) {
            line = "{\"metric\":" part[i]; metric = text(line, "metric"); s = value(line, "seconds"); strategy = text(line, "strategy")
            if (strategy == "standard") standard[metric] = s
            else row("strategy `" strategy "` against `standard`", work ", " metric, time(standard[metric]), time(s), ratio(standard[metric], s), text(line, "verdict"))
        }
    }'
done

measure "orders" bench run --suite memory "${quick[@]}" --json && table "" '/"workload"/ {
    w = text($0, "workload"); order = text($0, "order"); wall = value($0, "wall_s"); gpu = value($0, "gpu_s")
    if (/"same_bits":false/) row("order `" order "`", w, "", "", "", "BITS DIFFER")
    if (order == "program") { planned[w] = value($0, "planned_bytes"); before[w] = gpu != "" ? gpu : wall; next }
    what = "order `" order "` against `program`"
    bytes(what, w ", planned", planned[w], value($0, "planned_bytes"), value($0, "live_bytes"))
    now = gpu != "" ? gpu : wall
    if (now != "") row(what, w ", time", time(before[w]), time(now), ratio(before[w], now), text($0, "verdict"))
}'

for model in "$@"; do
    case $model in *:*:*) continue ;; esac
    measure "memory of $(name_of "$model")" optimize -m "$(file_of "$model")" --json || continue
    table "$(name_of "$model")" '
    # What is held: the blocks of the driver where it tells, else the buffers of the pool.
    function held(part) { return match(part, /"reserved(_bytes)?":[0-9]+/) ? substr(part, RSTART + index(substr(part, RSTART), ":"), RLENGTH - index(substr(part, RSTART), ":")) + 0 : value(part, "given_bytes") + value(part, "waiting_bytes") }
    {
        w = work ", " text($0, "work")
        if (/"same_bits":false/) row("defragmentation", w, "", "", "", "BITS DIFFER")
        bytes("order `auto` against `program`", w ", planned", value($0, "program_bytes"), value(substr($0, index($0, "\"program_bytes\"")), "planned_bytes"), value($0, "bound_bytes"))
        if (match($0, /"peak_bytes":\[[0-9]+,[0-9]+/)) { split(substr($0, RSTART + 14, RLENGTH - 14), peak, ","); bytes("order `auto` and defragmentation", w ", peak", peak[1], peak[2], "") }
        at = index($0, "\"defragmentation\":"); after = index(substr($0, at), "\"after\":")
        if (at && after) bytes("defragmentation", w ", held", held(substr($0, at, after)), held(substr($0, at + after)), "")
    }'
done

measure "caches" bench run --suite caches "${quick[@]}" --json && table "" '/"technique"/ {
    row(text($0, "technique") ": " text($0, "on") " instead of " text($0, "off"), text($0, "work"), time(value($0, "before")), time(value($0, "after")), ratio(value($0, "before"), value($0, "after")), text($0, "verdict"))
}'

for model in "$@"; do
    case $model in
        *:*:*) continue ;;
        *.gguf) text=(--file "$folder/text.txt" --text-tokens "$text_tokens") ;;
        *) text=() ;;
    esac
    file=$(file_of "$model")
    # All types are open at once.
    if [ "$(wc -c <"$file")" -gt $((600 << 20)) ]; then
        skipped+=("types of weights, $(name_of "$model"): the file has more than 600 MiB")
        continue
    fi
    measure "types of weights, $(name_of "$model")" bench dtypes -m "$file" --types f32,bf16,f16,q8_0,q4_0 "${text[@]}" -n "$dtype_tokens" -r "$rounds" --json ||
        continue
    table "$(name_of "$model")" '{
        n = split($0, part, "{\"type\":")
        for (i = 2; i <= n; i++) {
            line = "{\"type\":" part[i]; type = text(line, "type"); rate = value(line, "median"); perplexity = value(line, "perplexity")
            if (i == 2) { first = type; before = rate; p = perplexity; continue }
            quality = p > 0 ? sprintf("; perplexity %+.2f %%", 100 * (perplexity / p - 1)) : ""
            row("weights in " type " instead of " first, work ", decode", sprintf("%.4g tok/s", before), sprintf("%.4g tok/s", rate), ratio(rate, before), text(line, "verdict") quality)
        }
    }'
done

if [ ${#skipped[@]} -gt 0 ]; then
    printf '\nNot measured:\n\n'
    printf -- '- %s\n' "${skipped[@]}"
fi
echo "$SECONDS s: done" >&2
