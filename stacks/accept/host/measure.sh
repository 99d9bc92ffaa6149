#!/usr/bin/env bash
# Measures on a worker for busbar accept. It prints one JSON line: {"simulated"} (a simulator's own words), and
# VERB=fabric: {"error","text"}: the output of ibnetdiscover (gzip, base64), and why there is none.
# VERB=stress: {"error","diag"}: the output of dcgmi diag -r 3. With ENGINE=start, as in a pod, it starts nv-hostengine.
# VERB=mounted: {"mount","free_bytes","seen"}: what is mounted at FOLDER; the text that another host has left there. With
#   LEAVE=true it leaves that text, which is RUN, in FOLDER/.busbar-RUN.
# VERB=storage: {"error","fio"}: the output of fio in FOLDER/.busbar-RUN: writes, reads, random reads.
# VERB=clear: removes FOLDER/.busbar-RUN.
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/../../../host/parts.sh" lib

FABRIC_SECONDS=120
# Level 3 takes 15 minutes by its documentation.
STRESS_SECONDS=2700
PULSE_SECONDS=10
ENGINE_SECONDS=60
# Each of the three tests.
FIO_SECONDS=10

main() {
  begin_verb fabric stress mounted storage clear
  : "${FOLDER:=}" "${RUN:=}"
  "$VERB"
}

# program SECONDS PACKAGE COMMAND...: runs it, and prints the begin of the JSON object; its output is then in $OUT/out. A simulator
# says so where it prints its version.
program() {
  local status=0 error="" simulated seconds=$1 package=$2
  shift 2
  OUT=$(mktemp -d)
  : >"$OUT/out"
  if command -v "$1" >/dev/null; then
    timeout "$seconds" "$@" >"$OUT/out" 2>"$OUT/err" || status=$?
    ((status == 0)) || error="$1 ended with exit code $status: $(head -c 300 "$OUT/err" | head -n 1)"
  else
    error="$1 is not installed (package $package)"
  fi
  simulated=$({ timeout 20 "$1" --version 2>&1 || true; } | grep -i simulat | head -n 1 || true)
  printf '{"simulated":%s,"error":%s' "$(json "$simulated")" "$(json "$error")"
}

# output: what the program has printed, as a JSON string without indentation: 440 nodes have 20 MB of it.
output() {
  json "$(sed 's/^[ \t]*//' "$OUT/out")"
  rm -rf "$OUT"
}

fabric() {
  program "$FABRIC_SECONDS" infiniband-diags ibnetdiscover
  printf ',"text":"%s"}\n' "$(gzip -c "$OUT/out" | base64 -w 0)"
  rm -rf "$OUT"
}

stress() {
  local pulse pids
  # Kubernetes does not know of processes outside of pods, and the test takes all memory of the GPUs.
  pids=$({ timeout 20 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null || true; } | sed -n '/^[0-9]\+$/p' | xargs)
  [[ -z $pids ]] || die "processes outside of pods use its GPUs: $pids" "wait for their end, then begin another acceptance"
  if [[ ${ENGINE:-} == start ]] && command -v nv-hostengine >/dev/null; then
    nv-hostengine >&2
    poll "$ENGINE_SECONDS" dcgmi discovery -l >/dev/null 2>&1 || die "nv-hostengine is not responding" "use another image"
  fi
  # A firewall may cut a connection that is silent for minutes.
  while sleep "$PULSE_SECONDS" &>/dev/null && echo >&2; do :; done </dev/null &
  pulse=$!
  program "$STRESS_SECONDS" datacenter-gpu-manager-4-core dcgmi diag -r 3 -j
  kill "$pulse" || true
  printf ',"diag":%s}\n' "$(output)"
}

mounted() {
  local found="" free=0
  if [[ -d $FOLDER ]]; then
    found=$({ findmnt -rn -o TARGET,SOURCE,FSTYPE -T "$FOLDER" || true; } | tail -n 1)
    free=$(df -B1 --output=avail "$FOLDER" | tail -n 1)
    if [[ ${LEAVE:-} == true ]]; then
      mkdir "$FOLDER/.busbar-$RUN"
      printf '%s' "$RUN" >"$FOLDER/.busbar-$RUN/seen"
    fi
  fi
  printf '{"mount":%s,"free_bytes":%s,"seen":%s}\n' "$(json "$found")" "$((free))" \
    "$(json "$(head -c 100 "$FOLDER/.busbar-$RUN/seen" 2>/dev/null || true)")"
}

clear() {
  rm -rf "$FOLDER/.busbar-$RUN"
  printf '{}\n'
}

# storage: fio as root makes a missing folder. This one was made by another host, and is not made here.
storage() {
  local folder=$FOLDER/.busbar-$RUN
  [[ -f $folder/seen ]] || die "$folder/seen is not there" "mount $FOLDER as on the other hosts"
  local -a all=(--name=global --directory="$folder" --filename="$NODE_NAME" --numjobs=4 --size=256M --offset_increment=256M
    --direct=1 --ioengine=libaio --iodepth=32 --time_based --runtime="$FIO_SECONDS" --group_reporting --clat_percentiles=0)
  program $((6 * FIO_SECONDS + 120)) fio fio --output-format=json "${all[@]}" --name=write --rw=write --bs=1M \
    --name=read --rw=read --bs=1M --stonewall --name=iops --rw=randread --bs=4k --stonewall
  printf ',"fio":%s}\n' "$(output)"
}

main
