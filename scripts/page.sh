#!/usr/bin/env bash
# The chat page of `tl serve` in headless Chromium, with a real model:  scripts/page.sh [--page FILE] [--screenshots FOLDER] TL MODEL
# TL is the built command, MODEL the file of SmolLM2. --page shows a page.html that is not built yet in place of the command's own; --screenshots writes
# page-desktop.png and page-phone.png. Chromium is the machine's, or unpacked below target/chromium; what drives it, npm's puppeteer-core, is installed
# below target/page.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
say() { echo "page: $*" >&2; }

options=()
while [ $# -gt 2 ]; do
    case $1 in
        --page | --screenshots) options+=("$1" "$(realpath -m "$2")") ;;
        *) say "unknown argument $1"; exit 2 ;;
    esac
    shift 2
done
[ $# = 2 ] || { say "expected the command and the model's file"; exit 2; }
tl=$(realpath "$1") model=$(realpath "$2")
cd "$(dirname "$0")/.."
. scripts/packages.sh

root=${CARGO_TARGET_DIR:-$PWD/target}
driver=puppeteer-core@24.43.1
packages=$root/page/${driver#*@}
command -v npm >/dev/null || { say "this machine has no npm: please install nodejs and npm"; exit 1; }
if [ ! -d "$packages/node_modules" ]; then
    rm -rf "$packages.tmp"
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$packages.tmp" "$driver" >&2 ||
        { rm -rf "$packages.tmp"; say "npm cannot install $driver"; exit 1; }
    rm -rf "$packages" && mv "$packages.tmp" "$packages"
fi

chromium=$(command -v chromium || true)
if [ -z "$chromium" ]; then
    root=$root/chromium
    if [ ! -x "$root/usr/lib/chromium/chromium" ]; then
        unpack_packages "$root.tmp" chromium || { rm -rf "$root.tmp"; say "please install chromium"; exit 1; }
        rm -rf "$root" && mv "$root.tmp/root" "$root" && rm -rf "$root.tmp"
    fi
    chromium=$root/usr/lib/chromium/chromium
    for folder in "$root"/{,usr/}lib/*-linux-gnu{,/nss,/pulseaudio}; do
        [ ! -d "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    # Only Chromium is to load these libraries.
    libraries=${LD_LIBRARY_PATH:-}
    unset LD_LIBRARY_PATH
fi

. scripts/scratch.sh

# Fonts of this machine, and those that came with Chromium where it has none.
cat >"$work/fonts.conf" <<CONF
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <include ignore_missing="yes">$root/etc/fonts/fonts.conf</include>
  <dir>$root/usr/share/fonts</dir>
  <cachedir>$work/fonts</cachedir>
</fontconfig>
CONF

"$tl" serve "$model" --alias smollm2-135m-instruct --port 0 --device cpu --ctx 2048 --rows 4 --quiet >"$work/log" &
server=$!
processes+=("$server")
for _ in $(seq 600); do
    [ ! -s "$work/log" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
[ -s "$work/log" ] || { say "the server did not start"; exit 1; }

# All that Chromium writes goes with the folder, and Chromium ends with the script that drives it.
HOME=$work TMPDIR=$work FONTCONFIG_FILE=$work/fonts.conf CHROMIUM_LIBRARIES=${libraries:-} timeout --kill-after=10 300 \
    node cli/tests/page/page.mjs "$(head -1 "$work/log")" "$packages" "$chromium" ${options[@]+"${options[@]}"} &
processes+=($!)
wait $! || { say "failed"; exit 1; }
# The server leaves in order, with nothing under way.
kill "$server"
wait "$server"
say "passed"
