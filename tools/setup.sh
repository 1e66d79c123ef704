# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/train and tools/test: system packages, .venv, torch. Everything is skipped where
# it is there already.
#
#   PYTHON   the interpreter to make .venv from (default: python3.11, else python3 if 3.10 or later)

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH=torch==2.13.0
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

# The interpreter for .venv. Python 3.11 is what the project is tested with.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "no Python 3.10 or later found. Install Python 3.11 (Debian 12: apt-get install python3.11 \
python3.11-venv python3.11-dev), or set PYTHON to one."
}

make_venv() {
  if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    local python
    python="$(find_python)"
    say "Making .venv from $python"
    "$python" -m venv --clear .venv || die "$python cannot make a virtual environment. On Debian: \
apt-get install $("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
  fi
  PATH="$PWD/.venv/bin:$PATH"
  export PATH
}

# install PACKAGE… : with pip, torch pinned, so that nothing can move it.
install() {
  echo "$TORCH" > .venv/constraints.txt
  local stamp=".venv/installed-$(printf '%s\n' "$TORCH" "$@" | cksum | cut -d' ' -f1)"
  [ -e "$stamp" ] && return 0
  say "Installing $*"
  pip install --quiet --disable-pip-version-check -c .venv/constraints.txt "$@"
  touch "$stamp"
}

# Needed to build: a compiler, Abseil, torch.
setup_product() {
  local packages=(g++ libabsl-dev)
  if [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; then packages+=(ccache); fi  # does without it
  [ -n "$(command -v python3.11 || command -v python3)" ] || packages+=(python3 python3-venv python3-dev)
  system_packages "${packages[@]}" "$@"
  make_venv
  install "$TORCH" numpy
  # shellcheck disable=SC2086
  install $BUILD_PACKAGES
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
