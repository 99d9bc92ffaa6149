#!/usr/bin/env bash
# Measures on a worker for busbar accept. It prints one JSON line: {"simulated"} (a simulator's own words), and
# VERB=fabric: {"error","text"}: the output of ibnetdiscover (gzip, base64), and why there is none.
#
# By hand: sudo VERB=fabric bash stacks/accept/host/measure.sh </dev/null
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/../../../host/parts.sh" lib

FABRIC_SECONDS=120

main() {
  begin
  case $VERB in
    fabric) fabric ;;
    *) die "VERB=$VERB is unknown" "use fabric" ;;
  esac
}

# simulated PROGRAM: a simulator says so where it prints its version.
simulated() {
  json "$({ timeout 20 "$1" --version 2>&1 || true; } | grep -i simulat | head -n 1 || true)"
}

fabric() {
  local folder status=0 error=""
  if ! command -v ibnetdiscover >/dev/null; then
    printf '{"simulated":"","error":"ibnetdiscover is not installed (package infiniband-diags)","text":""}\n'
    return
  fi
  folder=$(mktemp -d)
  timeout "$FABRIC_SECONDS" ibnetdiscover >"$folder/out" 2>"$folder/err" || status=$?
  if ((status)); then
    error=$(head -n 1 "$folder/err")
    error="ibnetdiscover ended with exit code $status: ${error:0:300}"
  fi
  printf '{"simulated":%s,"error":%s,"text":"%s"}\n' "$(simulated ibnetdiscover)" "$(json "$error")" \
    "$(gzip -c "$folder/out" | base64 -w 0)"
  rm -rf "$folder"
}

main
