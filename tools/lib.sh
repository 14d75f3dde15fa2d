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

# More for cmake than the preset says.
configure_options=()

# Builds targets of the preset release, and says every ten seconds how far it is and how long it will take.
build_release() {
  local log ticker
  quietly "configuring the build" cmake --preset release "${configure_options[@]}"
  log=$(mktemp)
  tell_progress "$log" &
  ticker=$!
  if ! NINJA_STATUS='[%f/%t] ' cmake --build --preset release --target "$@" >"$log" 2>&1; then
    kill "$ticker" 2>/dev/null
    cat "$log" >&2
    rm -f "$log"
    fail 1 "the build failed; the output is above."
  fi
  kill "$ticker" 2>/dev/null
  rm -f "$log"
}

# Says how far ninja is, whose output goes to the file, until that is gone or this script ends.
tell_progress() {
  local begun=$SECONDS seen made all left
  while sleep 10 && [[ -e $1 ]] && kill -0 $$ 2>/dev/null; do
    seen=$(grep -o '^\[[0-9]*/[0-9]*\]' "$1" | tail -1 | tr -d '[]')
    made=${seen%/*} all=${seen#*/}
    ((made > 0)) || continue
    left=$(((SECONDS - begun) * (all - made) / made))
    say "built $made of $all files, about $((left / 60)) min $((left % 60)) s left."
  done
}

# Builds the program and the targets that are named, and the CUDA device where there is a driver for it.
build_program() {
  local targets=(holdfast "$@")
  if [[ -e /dev/nvidiactl ]]; then
    quietly "configuring the build" cmake --preset release "${configure_options[@]}"
    cmake --build --preset release --target help | grep -q '^holdfast_cuda:' && targets+=(holdfast_cuda)
  fi
  build_release "${targets[@]}"
}

# Says where Open MPI may look for settings, which name libraries to load, so nobody else may be able to put some there: the
# home directory of this user, else a directory of the build, else that of the system.
home_of_user() {
  local home
  home=$(getent passwd "$(id -u)" | cut -d: -f6) || home=
  if [[ $home != /* || ! -d $home || ! -O $home ]]; then
    home=$root/build/home
    [[ -d $home ]] || mkdir -p -m 700 "$home" 2>/dev/null || true
    if [[ ! -d $home || -L $home || ! -O $home ]] || [[ $(stat -c %a "$home") != 700 ]]; then
      home=/
    fi
  fi
  printf '%s' "$home"
}

# Open MPI reads the home directory, and refuses root, unless told otherwise.
if [[ -z ${HOME:-} ]]; then
  HOME=$(home_of_user)
fi
export HOME
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
