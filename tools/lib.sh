# Sourced by the scripts of tools/: the root of the tree, messages, and the Open MPI that tools/bootstrap chose.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${0##*/}
# shellcheck disable=SC2034  # used by the scripts that source this file
mpi=$root/.deps/mpi

say() { printf '%s: %s\n' "$program" "$*"; }

# fail EXIT_CODE SENTENCE...
fail() {
  local code=$1
  shift
  say "$*" >&2
  exit "$code"
}

# Runs a command quietly under a name; its output is shown only when it fails.
quietly() {
  local what=$1 log
  shift
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    fail 1 "$what failed; the output is above."
  fi
  rm -f "$log"
}

# Open MPI reads the home directory, and refuses root, unless told otherwise.
export HOME=${HOME:-/tmp}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# The PyPI wheel is compiled for another prefix and asks OPAL_PREFIX where it lives; a system MPI knows. In .deps the
# wheel is a relative link, so this holds after the tree was moved.
use_mpi_prefix() {
  local target
  target=$(readlink "$mpi" || true)
  if [[ -n $target && $target != /* ]]; then
    export OPAL_PREFIX=$root/.deps/$target
  fi
}
