#!/usr/bin/env bash
# setup.sh [test]: installs what is missing: the packages of packages/apt.txt
# (those below its "---" line for the tests alone) and a .venv with those of
# packages/python.txt. Quick when all is there. With LOCKSTEP_TORCH set, or a
# torch that the system's Python has, the wheel is not fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-build}
wanted=$(cat packages/apt.txt packages/python.txt scripts/setup.sh | sha256sum)
for level in "$what" test; do
  stamp=.venv/.lockstep-setup-$level
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
  fi
done

packages() {
  if [ "$what" = test ]; then
    grep -v '^#' packages/apt.txt
  else
    sed '/^# ---/,$d' packages/apt.txt | grep -v '^#'
  fi
}

is_installed() {
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'
}

# A line of names apart by "|" is met by any of them: releases name some
# packages differently (libcurl4 is libcurl4t64 from Ubuntu 24.04 on).
missing=()
while read -r line; do
  for package in ${line//|/ }; do
    is_installed "$package" && continue 2
  done
  missing+=("$line")
done < <(packages)
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: not root and no sudo; run as root:" >&2
      echo "  apt-get install -y ${missing[*]%%|*}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  # The tests start sshd, Slurm and dockerd themselves, each in a folder of its
  # own; what apt installs for them must not start to serve this machine.
  policy=/usr/sbin/policy-rc.d
  if [ "$what" = test ] && [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod +x "$policy"
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
  fi
  "${as_root[@]}" apt-get update -qq
  chosen=()
  for line in "${missing[@]}"; do
    for package in ${line//|/ }; do
      if [ -n "$(apt-cache show --no-all-versions "$package" 2>/dev/null)" ]; then
        chosen+=("$package")
        continue 2
      fi
    done
    echo "setup: apt has no package ${line//|/ or }" >&2
    echo "  on Ubuntu: add-apt-repository universe, then again" >&2
    exit 1
  done
  echo "setup: installing ${chosen[*]}"
  # env inside: sudo does not pass variables on.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${chosen[@]}" >/dev/null
fi

if [ ! -x .venv/bin/python3 ]; then
  echo "setup: making .venv"
  python3 -m venv .venv
fi
requirements=packages/python.txt
if [ -n "${LOCKSTEP_TORCH:-}" ]; then
  requirements=.venv/requirements.txt
  grep -v '^torch==' packages/python.txt > "$requirements"
elif found=$(python3 -c 'import importlib.util as u
print(list(u.find_spec("torch").submodule_search_locations)[0])' 2>/dev/null); then
  echo "setup: using the torch of the system's Python"
  requirements=.venv/requirements.txt
  grep -v '^torch==' packages/python.txt > "$requirements"
  site=$(.venv/bin/python3 -c 'import site; print(site.getsitepackages()[0])')
  dirname "$found" > "$site/system-torch.pth"
fi
echo "setup: installing Python packages into .venv"
.venv/bin/python3 -m pip install -q --disable-pip-version-check -r "$requirements"
echo "$wanted" > ".venv/.lockstep-setup-$what"
