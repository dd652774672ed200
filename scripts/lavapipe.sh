#!/usr/bin/env bash
# Gives a Debian-like machine a Vulkan driver that needs no GPU (Mesa's lavapipe), for the GPU tests.
#
#   scripts/lavapipe.sh            a recent Mesa, private to target/mesa: no root, nothing of the system changes.
#                                  Where it cannot be had, the system's own packages (apt-get, needs root).
#   scripts/lavapipe.sh --system   the system's packages, even where the private Mesa is there
#   scripts/lavapipe.sh --env      also print, for `eval`, what makes `cargo test` and `cargo run` use the driver
#
# The private Mesa comes from Debian's unstable suite, through the mirror and the keys that this machine's apt already uses.
# It brings its own C library, so a program runs on it through scripts/with-lavapipe.sh. A second call does nothing.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
cd "$(dirname "$0")/.."

pin=26.2.6-1                              # the Mesa that the tests were last checked with
here=${CARGO_TARGET_DIR:-$PWD/target}
root=${TL_MESA_DIR:-$here/mesa}
say() { echo "lavapipe: $*" >&2; }

# Everything that apt reads and writes, in a folder of our own; only its network settings are the machine's.
private_apt() {
    local work=$1 uri key signed=
    mkdir -p "$work"/{state/lists/partial,cache/archives/partial,etc/none} || return 1
    : >"$work/state/status"
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep '/debian/\?$' | head -n 1) || true
    [ -n "$uri" ] || { say "no Debian mirror in this machine's apt configuration"; return 1; }
    for key in /usr/share/keyrings/debian-archive-keyring.[gp]*; do [ -e "$key" ] && signed=signed-by=$key; done
    echo "deb [$signed arch=$(dpkg --print-architecture)] $uri sid main" >"$work/etc/sources.list"
    {
        apt-config dump | grep -E '^Acquire::' | grep -v -E '^Acquire::IndexTargets' || true
        cat <<CONF
Dir::State "$work/state";
Dir::State::status "$work/state/status";
Dir::Cache "$work/cache";
Dir::Etc::main "none";
Dir::Etc::parts "$work/etc/none";
Dir::Etc::sourcelist "$work/etc/sources.list";
Dir::Etc::sourceparts "$work/etc/none";
Dir::Etc::preferences "none";
Dir::Etc::preferencesparts "$work/etc/none";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
CONF
    } >"$work/apt.conf"
}

# Downloads and unpacks; the finished tree appears under its name in one step.
private_mesa() {
    local work=$root.tmp want newest deb
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || { say "this machine has no apt"; return 1; }
    rm -rf "$work"
    private_apt "$work/apt" || return 1
    export APT_CONFIG=$work/apt/apt.conf
    say "looking for Mesa $pin in Debian unstable"
    apt-get update -qq >&2 || { say "Debian unstable's package list cannot be read"; return 1; }
    newest=$(apt-cache madison mesa-vulkan-drivers | awk '{print $3}' | sort -V | tail -n 1)
    want=$(apt-cache madison mesa-vulkan-drivers | awk -v p="$pin" '$3 == p {print p; exit}')
    if [ -z "$want" ]; then
        [ -n "$newest" ] || { say "Debian unstable offers no Mesa for this machine"; return 1; }
        say "Mesa $pin is no longer offered, taking $newest"
        want=$newest
    fi
    apt-get install -qq -y --download-only "mesa-vulkan-drivers=$want" libvulkan1 libc6 >&2 ||
        { say "Mesa $want cannot be downloaded"; return 1; }
    mkdir "$work/root"
    for deb in "$work"/apt/cache/archives/*.deb; do
        dpkg -x "$deb" "$work/root" || { say "$(basename "$deb") cannot be unpacked"; return 1; }
    done
    unset APT_CONFIG
    # Only what a Vulkan program loads stays.
    rm -rf "$work"/root/usr/{bin,sbin,include,libexec,lib/systemd} "$work"/root/{etc,var} "$work"/root/usr/lib/*/gconv
    find "$work/root/usr/lib" -name "libvulkan_*" ! -name "libvulkan_lvp*" -delete
    find "$work/root/usr/share" -mindepth 1 -maxdepth 1 ! -name vulkan ! -name drirc.d ! -name libdrm -exec rm -rf {} +
    echo "$want" >"$work/root/version"
    rm -rf "$root"
    mv "$work/root" "$root"
    rm -rf "$work"
}

system_mesa() {
    if [ -e "$(system_icd)" ] && ldconfig -p | grep -q libvulkan.so.1; then return 0; fi
    [ "$(id -u)" = 0 ] || { say "please install mesa-vulkan-drivers and libvulkan1 (apt-get, as root)"; return 1; }
    say "installing mesa-vulkan-drivers and libvulkan1"
    export DEBIAN_FRONTEND=noninteractive
    local install="apt-get install -qq -y --no-install-recommends mesa-vulkan-drivers libvulkan1"
    $install >/dev/null 2>&1 || { apt-get update -qq >&2 && $install >/dev/null; } ||
        { say "mesa-vulkan-drivers cannot be installed"; return 1; }
}

system_icd() {
    local f
    for f in /usr/share/vulkan/icd.d/lvp_icd*.json; do [ -e "$f" ] && break; done
    echo "$f"
}

mode=private print=
for arg in "$@"; do
    case $arg in
        --system) mode=system ;;
        --env) print=yes ;;
        *) say "unknown argument $arg"; exit 2 ;;
    esac
done

if [ $mode = private ] && [ ! -e "$root/version" ] && ! private_mesa; then
    unset APT_CONFIG
    rm -rf "$root.tmp"
    say "going on with the system's Mesa"
    mode=system
fi
if [ $mode = system ]; then
    system_mesa
    say "Mesa of the system, $(system_icd)"
else
    say "Mesa $(cat "$root/version"), $root"
fi

if [ "$print" ]; then
    triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    echo "export CARGO_TARGET_${triple}_RUNNER='$PWD/scripts/with-lavapipe.sh'"
    echo "export TL_LAVAPIPE=$mode TL_MESA_DIR='$root'"
fi
