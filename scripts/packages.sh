# For scripts that source it: Debian packages without root, through the mirror and the keys that this machine's apt already uses.
# `say` is the script's own.

# Downloads packages and what this machine lacks of their dependencies, and unpacks them:  unpack_packages WORK [OPTION OF apt-get install]... PACKAGE...
# They lie in WORK/root then. The caller removes WORK after a failure.
unpack_packages() {
    local work=$1 deb
    shift
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || { say "this machine has no apt"; return 1; }
    rm -rf "$work"
    mkdir -p "$work"/{lists/partial,cache/archives/partial,root}
    local apt="apt-get -qq -y --no-install-recommends -o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache -o Debug::NoLocking=1
        -o APT::Sandbox::User=$(id -un) -o Acquire::Languages=none -o Acquire::Retries=3"
    say "looking in this machine's packages for ${*##-*}"
    $apt update >&2 || { say "the package list cannot be read"; return 1; }
    $apt install --download-only "$@" >&2 || { say "the packages cannot be downloaded"; return 1; }
    for deb in "$work"/cache/archives/*.deb; do
        dpkg -x "$deb" "$work/root" || { say "$(basename "$deb") cannot be unpacked"; return 1; }
    done
}
