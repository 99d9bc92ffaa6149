#!/usr/bin/env bash
# Make the virtual environment that everything here runs in, from the pinned requirements.
# Usage: tests/bootstrap.sh DIR REQUIREMENTS [OPTION OF pip install...]     (PYTHON=python3.12 chooses the interpreter)
set -euo pipefail

venv=${1:?the folder of the virtual environment}
requirements=${2:?the file with the pinned requirements}
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "busbar needs Python 3.11 or newer; $python is $("$python" -V 2>&1). Set PYTHON=/path/to/python3.11." >&2
  exit 1
fi

if [ ! -x "$venv/bin/pip" ]; then
  # Debian and Ubuntu ship ensurepip in a package of its own.
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
      echo "$python cannot make a virtual environment: install $package" >&2
      exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
  fi
  "$python" -m venv "$venv"
fi

started=$SECONDS
echo "Python packages: installing the pinned versions"
"$venv/bin/pip" install --quiet --disable-pip-version-check --root-user-action=ignore \
  --require-hashes -r "$requirements" "${@:3}"
# The project itself, so that `busbar` is a command; its dependencies are all pinned above.
"$venv/bin/pip" install --quiet --disable-pip-version-check --root-user-action=ignore \
  --no-deps --no-build-isolation --editable .
echo "Python packages: done in $((SECONDS - started)) s"
