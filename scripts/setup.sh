#!/usr/bin/env bash
# Installs what is missing: the packages of packages/apt.txt and a .venv with
# those of packages/python.txt. Quick when all is there. With LOCKSTEP_TORCH
# set, or a torch that the system's Python has, the wheel is not fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.lockstep-setup
wanted=$(cat packages/apt.txt packages/python.txt scripts/setup.sh | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi

missing=()
while read -r package; do
  if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null \
      | grep -q 'install ok installed'; then
    missing+=("$package")
  fi
done < <(grep -v '^#' packages/apt.txt)
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${missing[*]}"
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: not root and no sudo; run as root:" >&2
      echo "  apt-get install -y ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq \
    --no-install-recommends "${missing[@]}" >/dev/null
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
echo "$wanted" > "$stamp"
