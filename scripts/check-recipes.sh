#!/usr/bin/env bash
# Checks the recipes for clusters with the clusters' own programs, without a cluster:  scripts/check-recipes.sh [CRD.yaml]
# - recipes/train.slurm: shellcheck, and `sbatch --test-only` at a Slurm controller of its own, from Debian's packages below target/slurm, on loopback. Its nodes
#   have no GPUs, so the line that asks for them is left out there.
# - recipes/mpijob.yaml: the schema of the MPI operator's MPIJob, from CRD.yaml or from the operator's repository, with no field beside those it names.
# - recipes/replicas.yaml: its pods, by the schema of pods in the same file.
set -euo pipefail
[ -z "${CARGO_TARGET_DIR:-}" ] || CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
crd=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
. scripts/packages.sh

OPERATOR=https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.6.0/manifests/base/kubeflow.org_mpijobs.yaml
target=${CARGO_TARGET_DIR:-$PWD/target}
root=$target/slurm
say() { echo "recipes: $*" >&2; }

if [ ! -x "$root/usr/bin/sbatch" ]; then
    unpack_packages "$root.tmp" slurmctld slurm-client slurm-wlm-basic-plugins shellcheck || { rm -rf "$root.tmp"; exit 1; }
    mv "$root.tmp/root" "$root"
    rm -rf "$root.tmp"
fi

place=$(mktemp -d)
controller=
trap '[ -z "$controller" ] || kill "$controller" 2>/dev/null || true; rm -rf "$place"' EXIT
plugins=$(dirname "$(find "$root" -name auth_none.so)")
export LD_LIBRARY_PATH=$(dirname "$plugins"):$plugins SLURM_CONF=$place/slurm.conf
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
NodeName=n[1-2] CPUs=32 RealMemory=64000 State=CLOUD
PartitionName=all Nodes=ALL Default=YES MaxTime=1-00:00:00 State=UP
CONF
"$root/usr/sbin/slurmctld-wlm" -D -c >"$place/out" 2>&1 &
controller=$!
for _ in $(seq 100); do
    grep -q "Running as primary" "$place/out" && break
    sleep 0.1
done
"$root/usr/bin/shellcheck" recipes/train.slurm
grep -v -- "--gpus-per-task" recipes/train.slurm >"$place/train.slurm"
sed 's/^#SBATCH --nodes=2/#SBATCH --nodes=3/' "$place/train.slurm" >"$place/large.slurm"
"$root/usr/bin/sbatch" --test-only "$place/train.slurm" 2>&1 | sed 's/^/recipes: train.slurm: /'
if "$root/usr/bin/sbatch" --test-only "$place/large.slurm" >/dev/null 2>&1; then
    say "Slurm took a job of three nodes where there are two: the check shows nothing"
    exit 1
fi

if [ -z "$crd" ]; then
    crd=$place/crd.yaml
    curl -sSfL "$OPERATOR" -o "$crd" || { say "the operator's schema cannot be read"; exit 1; }
fi
python3 - "$crd" <<'PYTHON'
import sys, yaml, jsonschema

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
mpijob = yaml.safe_load(open("recipes/mpijob.yaml"))
jsonschema.validate(mpijob, job)
wrong = yaml.safe_load(open("recipes/mpijob.yaml"))
wrong["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["container"] = []
try:
    jsonschema.validate(wrong, job)
    sys.exit("recipes: the schema takes fields that do not exist: the check shows nothing")
except jsonschema.ValidationError:
    pass
print("recipes: mpijob.yaml: a valid", mpijob["kind"])
deployment, service = yaml.safe_load_all(open("recipes/replicas.yaml"))
jsonschema.validate(deployment["spec"]["template"], pod)
labels = deployment["spec"]["template"]["metadata"]["labels"]
ports = [p["name"] for c in deployment["spec"]["template"]["spec"]["containers"] for p in c["ports"]]
assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"], "replicas.yaml: the selectors differ"
assert all(p["targetPort"] in ports for p in service["spec"]["ports"]), "replicas.yaml: the service names a port that no container has"
print("recipes: replicas.yaml: valid pods, which the service selects")
PYTHON
