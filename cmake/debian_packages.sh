# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by examples/run.sh and tests/run.sh: what they share.

# say TEXT...: one line of progress.
say() { printf -- '-- %s\n' "$*"; }

# require_packages PACKAGE=PROBE...: installs the Debian packages whose probe fails. A probe is a program's name or
# the path of a file, so that a tool from elsewhere than Debian counts too. Returns 1 where something stays missing.
require_packages() {
  local entry probe missing=()
  for entry in "$@"; do
    probe=${entry#*=}
    if [[ $probe == /* ]]; then [[ -e $probe ]]; else command -v "$probe" >/dev/null; fi ||
      missing+=("${entry%%=*}")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if ! command -v apt-get >/dev/null; then
    say "missing, and there is no apt-get here; by their Debian names: ${missing[*]}" >&2
    return 1
  fi

  local as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null || ! sudo -v; then
      say "missing packages; as root, run: apt-get update && apt-get install -y ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  local log still
  log=$(mktemp)
  while sleep 25; do say "still installing"; done &
  still=$!
  if ! { "${as_root[@]}" apt-get update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1; then
    kill "$still"
    tail -n 20 "$log" >&2
    rm -f "$log"
    say "apt-get failed; as root, run: apt-get update && apt-get install -y ${missing[*]}" >&2
    return 1
  fi
  kill "$still"
  rm -f "$log"
}

# quietly LOG COMMAND...: runs it with its output in LOG; where it fails, shows the end of LOG.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 && return 0
  tail -n 40 "$log" >&2
  say "failed: $* (all of it: $log)" >&2
  return 1
}

# drop_moved_build SOURCE BUILD: removes a build folder that was configured for another source folder, which CMake
# refuses to use (a clone that was moved or copied).
drop_moved_build() {
  local cache=$2/CMakeCache.txt
  [[ -f $cache ]] || return 0
  grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$1" "$cache" || rm -rf "$2"
}
