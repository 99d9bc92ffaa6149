#!/usr/bin/env bash
# Every shell script of the project through the shellcheck of the environment (`make dev`).
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH

mapfile -t scripts < <(git ls-files -s | sed -n 's/^100[0-9]* [0-9a-f]* 0\t//p' | xargs -d '\n' awk 'FNR == 1 && /^#!.*[\/ ](ba)?sh$/ { print FILENAME } { nextfile }')
shellcheck --severity=style "${scripts[@]}"
echo "shellcheck: ${#scripts[@]} scripts clean"
