#!/bin/bash
# Looks at the config, the data and the bucket, and queues the job: from the root of the repository, on a file system that the nodes share,
#     BUCKET=NAME/PREFIX configs/examples/slurm_object_store.sh [OPTION OF sbatch ...] [-- --section.key=value ...]
# Each run has a prefix of its own. Credentials and endpoint are where boto3 looks for them (configs/object_store/s3.py); PYTHON names a
# Python with boto3, HOLDFAST the program. tests/system/examples_test.py runs it.
set -euo pipefail

config=configs/examples/slurm_object_store.toml
if [[ -z ${BUCKET-} ]]; then
  echo "slurm_object_store.sh: BUCKET is not set; give the bucket and a prefix of this run's own, as BUCKET=NAME/PREFIX" >&2
  exit 2
fi
for_sbatch=()
while (($#)) && [[ $1 != -- ]]; do for_sbatch+=("$1") && shift; done
(($#)) && shift

"${HOLDFAST:-build/release/bin/holdfast}" check "$config" "$@"
if ! "${PYTHON:-python3}" configs/object_store/s3.py list "s3://$BUCKET"; then
  echo "slurm_object_store.sh: nothing is queued, as s3://$BUCKET cannot be listed from here; look at its name, credentials, endpoint, and boto3" >&2
  exit 2
fi
export BUCKET
exec sbatch "${for_sbatch[@]}" configs/slurm/several_nodes.sbatch "$config" "$@"
