#!/usr/bin/env bash
# Checks the recipes for clusters with the clusters' own programs, without a cluster:  scripts/check-recipes.sh [--allow-missing] [CRD.yaml]
# - recipes/train.slurm: shellcheck, and `sbatch --test-only` at a Slurm controller of its own, from Debian's packages below target/slurm, on loopback, whose two
#   nodes have four GPUs each.
# - recipes/mpijob.yaml: the schema of the MPI operator's MPIJob, from CRD.yaml or from the operator's repository, with no field beside those it names.
# - recipes/replicas.yaml: what its service selects, and its pods, by the schema of pods in the same file.
# What cannot be had is named in a line `not checked: …`. With --allow-missing the rest is checked then, otherwise that is the end.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
allow_missing=
[ "${1:-}" != --allow-missing ] || { allow_missing=1; shift; }
crd=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
. scripts/packages.sh

OPERATOR=https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.6.0/manifests/base/kubeflow.org_mpijobs.yaml
root=${CARGO_TARGET_DIR:-$PWD/target}/slurm
say() { echo "recipes: $*" >&2; }
missing() {
    echo "not checked: $*"
    [ -n "$allow_missing" ] || exit 1
}

place=$(mktemp -d)
controller=
trap '[ -z "$controller" ] || { kill "$controller" && wait "$controller"; } 2>/dev/null || true; rm -rf "$place"' EXIT

# At a controller of its own.
check_slurm() {
    local plugins name value
    plugins=$(dirname "$(find "$root" -name auth_none.so)")
    LD_LIBRARY_PATH=$(dirname "$plugins"):$plugins
    export LD_LIBRARY_PATH SLURM_CONF=$place/slurm.conf
    cat >"$SLURM_CONF" <<CONF
ClusterName=check
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$((20000 + $$ % 10000))
SlurmUser=$(id -un)
AuthType=auth/none
CredType=cred/none
PluginDir=$plugins
StateSaveLocation=$place
SlurmctldPidFile=$place/pid
ProctrackType=proctrack/linuxproc
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=600
GresTypes=gpu
NodeName=n[1-2] CPUs=32 RealMemory=64000 State=CLOUD
PartitionName=all Nodes=ALL Default=YES MaxTime=1-00:00:00 State=UP
CONF
    "$root/usr/sbin/slurmctld-wlm" -D -c >"$place/out" 2>&1 &
    controller=$!
    for _ in $(seq 100); do
        grep -q "Running as primary" "$place/out" && break
        sleep 0.1
    done
    # A controller learns of GPUs from nodes that start. These never do, so it is told.
    "$root/usr/bin/scontrol" update 'nodename=n[1-2]' gres=gpu:4
    "$root/usr/bin/shellcheck" recipes/train.slurm
    "$root/usr/bin/sbatch" --test-only recipes/train.slurm 2>&1 | sed 's/^/recipes: train.slurm: /'
    while read -r name value; do
        sed "s/^#SBATCH --$name=.*/#SBATCH --$name=$value/" recipes/train.slurm >"$place/large.slurm"
        ! cmp -s recipes/train.slurm "$place/large.slurm" || { say "train.slurm has no line for --$name"; exit 1; }
        if "$root/usr/bin/sbatch" --test-only "$place/large.slurm" >/dev/null 2>&1; then
            say "Slurm took a job with --$name=$value, more than there is: the check shows nothing"
            exit 1
        fi
    done <<<$'nodes 3\ngpus-per-task 2'
}

if [ ! -x "$root/usr/bin/sbatch" ]; then
    if unpack_packages "$root.tmp" slurmctld slurm-client slurm-wlm-basic-plugins shellcheck; then mv "$root.tmp/root" "$root"; fi
    rm -rf "$root.tmp"
fi
if [ -x "$root/usr/bin/sbatch" ]; then
    check_slurm
else
    missing "recipes/train.slurm: Slurm's packages cannot be had"
fi

if ! python3 -c "import yaml, jsonschema" 2>/dev/null; then
    missing "recipes/mpijob.yaml, recipes/replicas.yaml: this machine has no python3 with yaml and jsonschema"
    exit
fi
if [ -z "$crd" ] && ! curl -sSfL --max-time 20 "$OPERATOR" -o "$place/crd.yaml"; then
    missing "recipes/mpijob.yaml, pods of recipes/replicas.yaml: the operator's schema cannot be read"
fi
[ -n "$crd" ] || [ ! -f "$place/crd.yaml" ] || crd=$place/crd.yaml
python3 - "$crd" <<'PYTHON'
import sys, yaml

deployment, service = yaml.safe_load_all(open("recipes/replicas.yaml"))
labels = deployment["spec"]["template"]["metadata"]["labels"]
ports = [p["name"] for c in deployment["spec"]["template"]["spec"]["containers"] for p in c["ports"]]
assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"], "replicas.yaml: the selectors differ"
assert all(p["targetPort"] in ports for p in service["spec"]["ports"]), "replicas.yaml: the service names a port that no container has"
print("recipes: replicas.yaml: the service selects its pods")
mpijob = yaml.safe_load(open("recipes/mpijob.yaml"))
if not sys.argv[1]:
    sys.exit()
import jsonschema

def closed(schema):
    """The schema, which allows no other fields than it names."""
    if isinstance(schema, dict):
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
        # Kubernetes' quantities and ports: a number or text.
        if schema.pop("x-kubernetes-int-or-string", False):
            schema.pop("anyOf", None), schema.pop("type", None), schema.pop("pattern", None)
        for part in list(schema.values()):
            closed(part)
    elif isinstance(schema, list):
        for part in schema:
            closed(part)
    return schema

versions = yaml.safe_load(open(sys.argv[1]))["spec"]["versions"]
schema = next(v for v in versions if v["name"] == "v2beta1")["schema"]["openAPIV3Schema"]
schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
job = closed(schema)
pod = job["properties"]["spec"]["properties"]["mpiReplicaSpecs"]["additionalProperties"]["properties"]["template"]
jsonschema.validate(mpijob, job)
wrong = yaml.safe_load(open("recipes/mpijob.yaml"))
wrong["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["container"] = []
try:
    jsonschema.validate(wrong, job)
    sys.exit("recipes: the schema takes fields that do not exist: the check shows nothing")
except jsonschema.ValidationError:
    pass
print("recipes: mpijob.yaml: a valid", mpijob["kind"])
jsonschema.validate(deployment["spec"]["template"], pod)
print("recipes: replicas.yaml: valid pods")
PYTHON
