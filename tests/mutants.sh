#!/usr/bin/env bash
# Seeds small faults into one module, one at a time, and prints those that its tests do not notice (`make mutants`).
#
# usage: mutants.sh MODULE TESTS [BASE]
#   MODULE: a file or folder of Python. TESTS: arguments of pytest. BASE: a commit; only lines that differ from it.
# The exit code is 1 where more than 5 % are not noticed. It works in a copy, since Cosmic Ray changes files in place.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -z ${1:-} || -z ${2:-} ]]; then
  echo 'usage: make mutants MODULE=busbar/config/checks.py TESTS=tests/unit/config [BASE=main]' >&2
  exit 64
fi
bin=$PWD/.venv/bin
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git clone -q --shared . "$copy/tree"
# shellcheck disable=SC2016 # the inner shell expands these
git ls-files -z -com --exclude-standard | xargs -0 sh -c 'for f; do [ ! -e "$f" ] || cp -P --parents "$f" "$0"; done' "$copy/tree"
base=$(git rev-parse "${3:-HEAD}")
cd "$copy/tree"
export PYTHONPATH=$PWD PATH=$bin:$PATH
config=$copy/mutants.toml session=$copy/session.sqlite
{
  cat tests/mutants.toml
  printf '[cosmic-ray.filters.git-filter]\nbranch = "%s"\n' "$base"
} >"$config"
sed -i "s|^timeout|module-path = \"$1\"\ntest-command = \"python -m pytest -x -q -p no:cacheprovider $2\"\ntimeout|" "$config"
cosmic-ray baseline "$config"
cosmic-ray init "$config" "$session"
cr-filter-operators "$session" "$config"
[[ -z ${3:-} ]] || cr-filter-git --config "$config" "$session"
cosmic-ray exec "$config" "$session"
cr-report --surviving-only --show-diff "$session"
cr-rate --fail-over 5 "$session"
