#!/usr/bin/env bash
# Real clients against `tl serve` with a real model:  scripts/clients.sh TL MODEL
# TL is the built command, MODEL the file of SmolLM2. The clients are curl, the Python packages openai, langchain-openai, litellm and anthropic, and the npm
# package openai; they are installed below target/clients by pip and npm, once. A machine without npm leaves that package out, and says so. Open WebUI's calls
# are replayed.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
tl=$(realpath "$1") model=$(realpath "$2")
cd "$(dirname "$0")/.."

root=${CARGO_TARGET_DIR:-$PWD/target}/clients
python=(openai==3.54.0 langchain-openai==1.7.3 anthropic==2.12.0)
# All that litellm needs here; the rest of its requirements are for other providers, and take pip minutes to agree on.
litellm=litellm==1.109.1
litellm_needs=(aiohttp click fastuuid filelock "httpx[http2]" huggingface-hub importlib-metadata jinja2 jsonschema pydantic-settings python-dotenv tokenizers)
node=openai@6.49.0
say() { echo "clients: $*" >&2; }

# The packages, below a folder that is named by their versions.
install() {
    local name pip
    name=$(echo "${python[*]}" "$litellm" "$node" | sha256sum | cut -c1-12)
    root=$root/$name
    if [ ! -x "$root/venv/bin/python" ]; then
        rm -rf "$root" && python3 -m venv "$root/venv.tmp"
        pip=("$root/venv.tmp/bin/pip" --quiet --disable-pip-version-check install --only-binary :all:)
        "${pip[@]}" "${python[@]}" "${litellm_needs[@]}" && "${pip[@]}" --no-deps "$litellm"
        mv "$root/venv.tmp" "$root/venv"
    fi
    if command -v npm >/dev/null && [ ! -d "$root/node_modules/openai" ]; then
        npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$root" "$node" >&2
    fi
}

# Asks with curl; fails on any status but 200.
ask() { curl --silent --show-error --fail-with-body --max-time 60 --header "Authorization: Bearer clients" --json "$2" "$url$1"; }

install
log=$(mktemp)
"$tl" serve "$model" --alias smollm2 --port 0 --device cpu --api-key clients --ctx 2048 --quiet >"$log" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 600); do
    [ ! -s "$log" ] || break
    kill -0 $server 2>/dev/null || { say "the server did not start"; exit 1; }
    sleep 0.1
done
url=$(head -1 "$log")

curl --silent --fail "$url/health" >/dev/null
talk='{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": true}'
[ "$(ask /v1/chat/completions "$talk" | grep -c '^data: ')" -ge 3 ]
ask /v1/chat/completions "$talk" | tail -n 2 | grep -qx 'data: \[DONE\]'
say "curl: passed"
# Nothing but the server is asked.
LITELLM_LOCAL_MODEL_COST_MAP=True "$root/venv/bin/python" cli/tests/clients/clients.py "$url"
"$root/venv/bin/python" cli/tests/clients/open_webui.py "$url"
if [ -d "$root/node_modules/openai" ]; then
    node cli/tests/clients/clients.mjs "$url" "$root"
    say "npm: passed"
else
    say "npm: not checked, this machine has none"
fi
# The server leaves in order, with nothing under way.
kill $server
wait $server
