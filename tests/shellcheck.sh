#!/usr/bin/env bash
# Every shell script of the project through shellcheck. Where it is missing it is installed (root)
# or the check is left out aloud; in CI a check left out is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v shellcheck >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq shellcheck >/dev/null
fi
if ! command -v shellcheck >/dev/null; then
  echo "SKIPPED: shellcheck is not installed (apt-get install shellcheck)" >&2
  [ "${CI:-}" != true ]
  exit
fi

mapfile -t scripts < <(git ls-files -z | xargs -0 awk 'FNR == 1 && /^#!.*[\/ ](ba)?sh$/ { print FILENAME } { nextfile }')
shellcheck --severity=style "${scripts[@]}"
echo "shellcheck: ${#scripts[@]} scripts clean"
