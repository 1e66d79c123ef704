# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/train and tools/test: system packages, .venv, torch. Everything is skipped where
# it is there already.
#
#   TORCH    what pip installs (default: torch==2.13.0)
#   PYTHON   the interpreter (default: python3.11, else python3 if 3.10 or later)
#
# Another torch or Python than the default has an environment and a build folder of its own:
# `TORCH=torch==2.15.0 PYTHON=python3.12 tools/test` uses .venv-2.15.0-py3.12.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DEFAULT_TORCH=torch==2.13.0
TORCH="${TORCH:-$DEFAULT_TORCH}"
BUILD_PACKAGES="cmake>=3.18 ninja setuptools>=77 wheel"

say() { printf '\n==> %s\n' "$*"; }
die() { printf '\nerror: %s\n' "$*" >&2; exit 1; }

# system_packages NAME… : Debian packages, with apt where root or passwordless sudo allows.
system_packages() {
  command -v dpkg-query >/dev/null || return 0  # not Debian: CMake says what it misses
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then sudo=(sudo -n); else
      die "these packages are missing and installing them needs root: ${missing[*]}
Run: sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}
and start this command again."
    fi
  fi
  say "Installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends \
    "${missing[@]}"
}

# find_python CANDIDATE… : the first that is Python 3.10 or later.
find_python() {
  local candidate
  for candidate in "$@"; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

short_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# The environment's name says what is not the default. Python 3.11 is what the project is tested with.
VENV=""
make_venv() {
  [ -z "$VENV" ] || return 0
  local default python
  default="$(find_python python3.11 python3 || true)"
  python="$(find_python "${PYTHON:-$default}")" || die "no Python 3.10 or later found. Install \
Python 3.11 (Debian 12: apt-get install python3.11 python3.11-venv python3.11-dev), or set PYTHON to one."
  VENV=.venv
  [ "$TORCH" = "$DEFAULT_TORCH" ] || VENV+="-${TORCH#torch==}"
  if [ -n "$default" ] && [ "$(short_version "$python")" != "$(short_version "$default")" ]; then
    VENV+="-py$(short_version "$python")"
  fi
  if [ ! -x "$VENV/bin/python" ] || ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
    say "Making $VENV from $python"
    "$python" -m venv --clear "$VENV" || die "$python cannot make a virtual environment. On Debian: \
apt-get install python$(short_version "$python")-venv"
  fi
  PATH="$PWD/$VENV/bin:$PATH"
  export PATH
}

# install PACKAGE… : with pip, torch pinned, so that nothing can move it.
install() {
  echo "$TORCH" > "$VENV/constraints.txt"
  local stamp="$VENV/installed-$(printf '%s\n' "$TORCH" "$@" | cksum | cut -d' ' -f1)"
  [ -e "$stamp" ] && return 0
  say "Installing $*"
  pip install --quiet --disable-pip-version-check -c "$VENV/constraints.txt" "$@" && touch "$stamp"
}

# Needed to build: a compiler, Abseil, torch.
setup_product() {
  local packages=(g++ libabsl-dev)
  if [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; then packages+=(ccache); fi  # does without it
  [ -n "$(command -v python3.11 || command -v python3)" ] || packages+=(python3 python3-venv python3-dev)
  system_packages "${packages[@]}" "$@"
  make_venv
  # shellcheck disable=SC2086
  install "$TORCH" numpy && install $BUILD_PACKAGES
}

# Compiled files are kept in ccache's folder for other builds and other checkouts (~/.cache/ccache
# unless CCACHE_DIR says otherwise). What the project's settings need, where nobody has set it:
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}" CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"
# Needed for precompiled headers.
export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}"

# build_product [VARIABLE=value…] : the extension, in place. pip alone would show no progress.
build_product() {
  say "Building (the first time takes some minutes)"
  export NINJA_STATUS="[%f/%t, %e s] "
  env "$@" python setup.py --quiet build_ext --inplace &&
    env "$@" pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
}
