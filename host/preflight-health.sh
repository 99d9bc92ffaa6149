#!/usr/bin/env bash
# Reads the counters of a worker's GPUs, PCIe links and HCA ports, and what keeps them from reaching each other.

HEALTH_SECONDS=20
XID_LINES=100
# Files of sysfs. The first four are narrow in the standard's counters, and stay at their maximum.
COUNTERS=(link_downed link_error_recovery local_link_integrity_errors excessive_buffer_overrun_errors symbol_error
  port_rcv_errors port_xmit_discards)

# health: {"uptime_seconds","xids":[lines of the kernel],"ecc","remapped_rows","nvlink": texts of nvidia-smi,
# "links":[...],"counters":[...]}; null is what cannot be read.
health() {
  printf '{"uptime_seconds":%s,"xids":%s' "$(cut -d. -f1 /proc/uptime)" "$(xids)"
  printf ',"ecc":%s' "$(nvidia_smi --query-gpu=pci.bus_id,ecc.errors.uncorrected.volatile.total --format=csv,noheader,nounits)"
  printf ',"remapped_rows":%s' \
    "$(nvidia_smi --query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure --format=csv,noheader)"
  printf ',"nvlink":%s,"links":[%s],"counters":[%s]}' "$(nvlink_errors)" "$(pcie_links)" "$(port_counters)"
}

# xids: of each Xid of each GPU the last line in the kernel's log of this boot: a program may write thousands of one.
xids() {
  local log
  log=$(timeout "$HEALTH_SECONDS" journalctl -q -k -b -o cat --no-pager 2>/dev/null) || { printf null; return; }
  printf '[%s]' "$(awk '/NVRM: Xid/ { key = $0; sub(/,.*/, "", key); if (!(key in last)) keys[++n] = key; last[key] = $0 }
    END { for (i = 1; i <= n; i++) print last[keys[i]] }' <<<"$log" | tail -n "$XID_LINES" | cut -c 1-300 | json_list)"
}

# nvidia_smi ARGUMENTS: what it prints, as a JSON string.
nvidia_smi() {
  local text
  if text=$(timeout "$HEALTH_SECONDS" nvidia-smi "$@" 2>/dev/null); then json "$text"; else printf null; fi
}

# nvlink_errors: of each GPU the counters that are not 0, after a line with its name.
nvlink_errors() {
  local text
  text=$(timeout "$HEALTH_SECONDS" nvidia-smi nvlink -e 2>/dev/null) || { printf null; return; }
  json "$(awk '/^GPU/ { gpu = $0 } /(Errors|(successful|failed) events): *[1-9]/ { if (gpu) print gpu; gpu = ""; print }' <<<"$text")"
}

# pcie_links: [{"name","width","max_width","speed","max_speed"}] of GPUs, by their PCI addresses, and of HCAs.
pcie_links() {
  local device list=""
  for device in $(pci_gpus); do
    list+=$(pcie_link "${device##*/}" "$device")
  done
  for device in "$INFINIBAND"/*; do
    list+=$(pcie_link "${device##*/}" "$device/device")
  done
  printf '%s' "${list#,}"
}

pcie_link() {
  [[ -r $2/current_link_width && -r $2/max_link_width ]] || return 0
  printf ',{"name":%s,"width":%s,"max_width":%s' "$(json "$1")" "$(sysfs "$2/current_link_width")" "$(sysfs "$2/max_link_width")"
  printf ',"speed":%s,"max_speed":%s}' "$(sysfs "$2/current_link_speed")" "$(sysfs "$2/max_link_speed")"
}

# port_counters: [{"hca","port","counter","value"}], those that are not 0.
port_counters() {
  local port hca counter value list=""
  for port in "$INFINIBAND"/*/ports/*; do
    hca=${port%/ports/*}
    for counter in "${COUNTERS[@]}"; do
      value=$(cat "$port/counters/$counter" 2>/dev/null) || continue
      [[ $value =~ ^[1-9][0-9]*$ ]] || continue
      list+=",{\"hca\":$(json "${hca##*/}"),\"port\":${port##*/},\"counter\":\"$counter\",\"value\":$value}"
    done
  done
  printf '%s' "${list#,}"
}

# fabric: "STATE, STATUS" of the NVLink fabric of each GPU.
fabric() {
  { timeout "$HEALTH_SECONDS" nvidia-smi -q 2>/dev/null || true; } | awk -F ' *: *' '
    /^ *Fabric *$/ { inside = 1; next }
    inside && $1 ~ / State$/ { state = $2 }
    inside && $1 ~ / Status$/ { print state ", " $2; inside = 0 }'
}

# json_list: the lines on stdin as JSON strings, separated by commas.
json_list() {
  tr -d '\000-\011\013-\037' | awk '{ gsub(/[\\"]/, "\\\\&"); printf "%s\"%s\"", comma, $0; comma = "," }'
}

# between_devices: "redirecting": the bridges above GPUs and HCAs at which ACS sends traffic between devices to the CPU. A root
# port is there. "translated": GPUs and HCAs whose addresses the IOMMU translates. "pci_settings":
# {"ADDRESS":{"MaxPayload","MaxReadReq","RlxdOrd","ATSCtl"}} of GPUs and HCAs, as lspci prints them; null without it.
between_devices() {
  local device folders bus settings=null
  # In sysfs each is below the bridges above it. Only the last folder of the path may be missing.
  folders=$(for device in $(pci_gpus) "$INFINIBAND"/*/device; do readlink -f "$device" || true; done)
  bus=$(timeout "$HEALTH_SECONDS" lspci -D -vv 2>/dev/null || true)
  printf '"redirecting":[%s]' "$(redirecting "$folders" <<<"$bus" | json_list)"
  printf ',"translated":[%s]' "$(translated <<<"$folders" | json_list)"
  [[ -z $(type -P lspci || true) ]] || settings=$(pci_settings "$(awk -F / '{ print $NF }' <<<"$folders")" <<<"$bus")
  printf ',"pci_settings":%s' "$settings"
}

redirecting() {
  awk '/^[0-9a-f]/ { bridge = $1 } /ACSCtl:.* ReqRedir\+/ { print bridge }' |
    { grep -xFf <(awk -F / '{ for (i = NF - 1; i > 1 && $(i - 1) !~ /^pci/; i--) print $i }' <<<"$1") || true; }
}

translated() {
  local device
  while IFS= read -r device; do
    [[ $(cat "$device/iommu_group/type" 2>/dev/null || echo identity) == identity ]] || echo "${device##*/}"
  done
}

pci_settings() {
  awk -v wanted="$1" '
    BEGIN { count = split(wanted, list, "\n"); for (i = 1; i <= count; i++) is_wanted[list[i]]; printf "{" }
    function keep(name, text) { if (device in is_wanted) found[device] = found[device] ",\"" name "\":\"" text "\"" }
    /^[0-9a-f]/ { device = $1 }
    match($0, /RlxdOrd[+-]/) { keep("RlxdOrd", substr($0, RSTART + 7, 1)) }
    /MaxPayload [0-9]+ bytes, MaxReadReq/ { keep("MaxPayload", $2); keep("MaxReadReq", $5) }
    match($0, /ATSCtl:[ \t]*Enable[+-]/) { keep("ATSCtl", substr($0, RSTART + RLENGTH - 1, 1)) }
    END { for (each in found) { printf "%s\"%s\":{%s}", comma, each, substr(found[each], 2); comma = "," }; printf "}" }'
}

# virtual_machine: its kind ("kvm"), "none", or nothing where systemd does not tell.
virtual_machine() {
  timeout "$HEALTH_SECONDS" systemd-detect-virt --vm 2>/dev/null || true
}
