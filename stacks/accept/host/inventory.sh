#!/usr/bin/env bash
# Identities of a worker's parts: one JSON object on stdout. It runs inside host/preflight.sh, whose functions it has (payload
# `also`), and alone with VERB=ask, before each stage of an acceptance. It changes nothing.
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/../../../host/parts.sh" lib preflight-hardware preflight-health

# accept_gpus: {"uuid","serial","vbios","ecc"} per GPU, as nvidia-smi prints them.
accept_gpus() {
  local line field list="" part
  while IFS= read -r line; do
    [[ $line == *", "* ]] || continue
    part=""
    for field in uuid serial vbios ecc; do
      part+="${part:+,}\"$field\":$(json "${line%%, *}")"
      line=${line#*, }
    done
    list+="${list:+,}{$part}"
  done < <(timeout "$HEALTH_SECONDS" nvidia-smi --query-gpu=uuid,serial,vbios_version,ecc.mode.current --format=csv,noheader 2>/dev/null || true)
  printf '%s' "$list"
}

# accept_hcas: {"name","port","guid","vf","counters"} per port: the last 8 bytes of its first GID are the port GUID. A virtual
# function has a new one after each boot. Some drivers have no counters of errors.
accept_hcas() {
  local port hca gid list=""
  for port in "$INFINIBAND"/*/ports/*; do
    gid=$(cat "$port/gids/0" 2>/dev/null) || continue
    hca=${port%/ports/*}
    list+="${list:+,}{\"name\":$(json "${hca##*/}"),\"port\":${port##*/},\"guid\":$(json "${gid#*:*:*:*:}")"
    list+=",\"vf\":$(truth test -e "$hca/device/physfn"),\"counters\":$(truth grep -qs . "$port/counters/link_downed")}"
  done
  printf '%s' "$list"
}

accept_report() {
  local simulated
  # A simulator of nvidia-smi says so where it prints its version.
  simulated=$({ timeout "$HEALTH_SECONDS" nvidia-smi --version 2>/dev/null || true; } | grep -i simulat | head -n 1 || true)
  printf '{"machine":%s,"boot_id":%s' "$(json "$({ cat /etc/machine-id 2>/dev/null; echo busbar; } | sha256sum | cut -d ' ' -f 1)")" \
    "$(json "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || true)")"
  printf ',"gpus":[%s],"hcas":[%s],"nvlinks":%s' "$(accept_gpus)" "$(accept_hcas)" "$(nvidia_smi nvlink -s)"
  printf ',"serial":%s,"simulated":%s}' "$(json "$(cat "${DMI:-/sys/class/dmi/id}/product_serial" 2>/dev/null || true)")" "$(json "$simulated")"
}

[[ ${VERB:-} != ask ]] || begin
accept_report
