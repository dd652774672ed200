# For scripts that source it: `work`, a folder, and `processes`, a list of processes, that end with the script.
work=$(mktemp -d)
processes=()
cleanup() {
    kill "${processes[@]}" 2>/dev/null || true
    wait "${processes[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
