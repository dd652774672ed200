#!/usr/bin/env bash
# Two replicas of `tl serve` behind nginx on this machine, by docs/deploy/nginx.conf:  scripts/replicas.sh TL MODEL
# Requests and a stream pass; then one replica leaves while more come, and none of them fails. nginx is the machine's, or unpacked below target/nginx.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
tl=$(realpath "$1") model=$(realpath "$2")
cd "$(dirname "$0")/.."
. scripts/packages.sh

root=${CARGO_TARGET_DIR:-$PWD/target}/nginx
say() { echo "replicas: $*" >&2; }

nginx=$(command -v nginx || echo "$root/usr/sbin/nginx")
if [ ! -x "$nginx" ]; then
    unpack_packages "$root.tmp" nginx || { rm -rf "$root.tmp"; say "please install nginx"; exit 1; }
    rm -rf "$root" && mv "$root.tmp/root" "$root" && rm -rf "$root.tmp"
fi

. scripts/scratch.sh

# A replica; its port is the last word of its line.
replica() {
    "$tl" serve "$model" --alias model --port 0 --device cpu --ctx 256 --rows 4 --quiet >"$work/$1" &
    processes+=($!)
}
replica one
replica two
for name in one two; do
    for _ in $(seq 600); do [ ! -s "$work/$name" ] || break; sleep 0.1; done
done
port() { head -1 "$work/$1" | sed 's/.*://'; }
front=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
sed -e "s/:8080/:$front/; s/:8081/:$(port one)/; s/:8082/:$(port two)/; s#/tmp/tl-nginx#$work/nginx#" docs/deploy/nginx.conf >"$work/nginx.conf"
"$nginx" -p "$work" -c "$work/nginx.conf" 2>"$work/nginx.log" &
processes+=($!)
url=http://127.0.0.1:$front
for _ in $(seq 100); do ! curl --silent --fail "$url/health" >/dev/null || break; sleep 0.1; done

ask() { curl --silent --show-error --fail-with-body --max-time 60 --json "$1" "$url/v1/completions"; }
body='{"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}'
want=$(ask "$body" | sed 's/.*"text":"\([^"]*\)".*/\1/')
[ -n "$want" ]
ask '{"prompt": "a", "max_tokens": 8, "stream": true}' | tail -n 2 | grep -qx 'data: \[DONE\]'
clients=()
for i in $(seq 24); do
    (ask "$body" | sed 's/.*"text":"\([^"]*\)".*/\1/' >"$work/answer$i") &
    clients+=($!)
    [ "$i" != 12 ] || kill "${processes[0]}"
done
wait "${clients[@]}"
for i in $(seq 24); do
    [ "$(cat "$work/answer$i")" = "$want" ] || { say "request $i: $(cat "$work/answer$i")"; cat "$work/nginx.log" >&2; exit 1; }
done
wait "${processes[0]}"
say "24 requests, one replica left meanwhile: all were answered"
