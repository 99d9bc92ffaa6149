#!/usr/bin/env bash
# Samples of a worker during a soak: a transient systemd unit with a time limit appends a JSON line every SAMPLE_SECONDS, with
# what has changed since the line before. It outlives the login that starts it.
#
# VERB=start: the unit runs, for LIMIT_SECONDS from now. VERB=fetch: prints its file. VERB=stop: unit and file are removed.
# Values: RUN, SAMPLE_SECONDS, LIMIT_SECONDS. Facts of fetch: {"samples"}: the file, gzip in base64.
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/../../../host/parts.sh" lib preflight-hardware preflight-health

SOAK=/var/lib/busbar-soak
# A sampler ends where a counter that never rests would fill the disk.
MOST_BYTES=$((8 << 20))

main() {
  begin_verb start fetch stop
  FILE=$SOAK/$RUN.samples
  "$VERB"
}

start() {
  ! systemctl -q is-active "busbar-$RUN" || systemctl stop "busbar-$RUN"
  install -d -m 0700 "$SOAK"
  {
    declare -p LC_ALL PATH INFINIBAND PCI HEALTH_SECONDS XID_LINES COUNTERS NODE_NAME RUN SAMPLE_SECONDS FILE MOST_BYTES
    declare -f
    echo sample
  } >"$SOAK/$RUN.sh"
  systemd-run -q --collect --unit "busbar-$RUN" -p RuntimeMaxSec="$LIMIT_SECONDS" /bin/bash "$SOAK/$RUN.sh"
  printf '{}\n'
}

fetch() {
  printf '{"samples":"%s"}\n' "$({ grep -a '^{.*}$' "$FILE" 2>/dev/null || true; } | gzip | base64 -w 0)"
}

stop() {
  ! systemctl -q is-active "busbar-$RUN" || systemctl stop "busbar-$RUN"
  rm -f "$FILE" "$SOAK/$RUN.sh"
  rmdir "$SOAK" 2>/dev/null || true
  printf '{}\n'
}

sample() {
  local line key value smi
  local -A last=()
  line=",\"run\":$(json "$RUN"),\"node\":$(json "$NODE_NAME"),\"machine\":$(json "$(machine)")"
  while (($(stat -c %s "$FILE" 2>/dev/null || echo 0) < MOST_BYTES)); do
    line="{\"t\":$(date +%s)$line"
    smi=$(timeout "$HEALTH_SECONDS" nvidia-smi --format=csv,noheader,nounits \
      --query-gpu=pci.bus_id,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.active,temperature.gpu,clocks.sm 2>/dev/null) || smi=""
    for key in boot k3s ports xids nvlink gpus heat; do
      value=$("sample_$key")
      [[ ${last[$key]-} == "$value" ]] || line+=",\"$key\":$value"
      last[$key]=$value
    done
    printf '%s}\n' "$line" >>"$FILE"
    line=""
    sleep "$SAMPLE_SECONDS"
  done
}

sample_boot() { json "$(cat /proc/sys/kernel/random/boot_id)"; }

sample_k3s() {
  local id
  id=$(systemctl show -p InvocationID --value k3s-agent 2>/dev/null)
  if [[ -n $id ]]; then json "$id"; else printf null; fi
}

# sample_ports: null where the ports have no counters, as with some drivers of HCAs.
sample_ports() {
  [[ -z $(compgen -G "$INFINIBAND/*/ports/*") || -n $(cat "$INFINIBAND"/*/ports/*/counters/link_downed 2>/dev/null) ]] ||
    { printf null; return; }
  printf '[%s]' "$(port_counters)"
}
sample_xids() { xids; }
sample_nvlink() { nvlink_errors; }

# sample_gpus: [PCI address, uncorrected ECC errors, reasons for throttling: HW slowdown, thermal, power brake], null where unread.
sample_gpus() {
  local bus errors reasons rest list=""
  [[ -n $smi ]] || { printf null; return; }
  while IFS=', ' read -r bus errors reasons rest; do
    [[ $errors =~ ^[0-9]+$ ]] || errors=null
    if [[ $reasons =~ ^0x[0-9a-fA-F]+$ ]]; then reasons=$((reasons & 0xE8)); else reasons=null; fi
    list+="${list:+,}[$(json "$bus"),$errors,$reasons]"
  done <<<"$smi"
  printf '[%s]' "$list"
}

# sample_heat: [highest temperature, lowest SM clock] of all GPUs.
sample_heat() {
  awk -F ', ' '$5 ~ /^[0-9]+$/ { if ($4 + 0 > hot) hot = $4 + 0; if (!n++ || $5 + 0 < low) low = $5 + 0 }
    END { if (n) printf "[%d,%d]", hot, low; else printf "null" }' <<<"$smi"
}

main
