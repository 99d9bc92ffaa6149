#!/usr/bin/env bash
# A worker's hardware as JSON: GPUs from nvidia-smi, HCAs from sysfs, kernel modules of GPUDirect RDMA, flow control.

# Without persistence mode 8 GPUs take 30 s and more (NVIDIA/gpu-operator driver.startupProbe).
NVIDIA_SMI_SECONDS=60
# mlnx_qos is a Python program; there may be 16 ports.
QOS_SECONDS=2
# One call opens all HCAs.
DEVINFO_SECONDS=10
# The exit status of nvidia-smi.
INFOROM_IS_CORRUPTED=14
LIBRARY_FOLDERS=(/usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/lib)
INFINIBAND=/sys/class/infiniband
PCI=/sys/bus/pci/devices
MODULES=/sys/module

# gpus: {"status":"ok|missing|failed","error":"...","inforom":"...","list":[{"model","driver","persistence_mode","mig"}],
# "pci":8,"empty_libraries":["..."]}
gpus() {
  local output="" line name mode mig list="" status=ok error="" inforom="" code=0
  if ! command -v nvidia-smi >/dev/null; then
    status=missing
  else
    # Without arguments it ends with 14 where an infoROM is corrupted; with -q it ends with 0 (microsoft/pai#3756).
    output=$(timeout "$NVIDIA_SMI_SECONDS" nvidia-smi 2>&1) || code=$?
    [[ $code != "$INFOROM_IS_CORRUPTED" ]] || code=0 inforom=$(grep -i inforom <<<"$output" || last_lines "$output")
    [[ $code != 0 ]] || output=$(timeout "$NVIDIA_SMI_SECONDS" nvidia-smi \
      --query-gpu=name,driver_version,persistence_mode,mig.mode.current \
      --format=csv,noheader 2>&1) || code=$?
    [[ $code == 0 || $code == "$INFOROM_IS_CORRUPTED" ]] || status=failed error=$(last_lines "$output") output=""
    while IFS= read -r line; do
      [[ $line == *", "*", "*", "* ]] || continue
      # From the end: the name may contain a comma.
      mig=false mode=false
      [[ ${line##*, } != Enabled ]] || mig=true
      line=${line%, *}
      [[ ${line##*, } != Enabled ]] || mode=true
      line=${line%, *}
      name=${line%, *}
      list+="${list:+,}{\"model\":$(json "$name"),\"driver\":$(json "${line##*, }")"
      list+=",\"persistence_mode\":$mode,\"mig\":$mig}"
    done <<<"$output"
  fi
  printf '{"status":"%s","error":%s,"inforom":%s,"list":[%s],"pci":%s,"empty_libraries":[%s]}' "$status" \
    "$(json "$error")" "$(json "$inforom")" "$list" "$(pci_gpus | wc -l)" "$(empty_libraries | json_list)"
}

# last_lines TEXT: the end of it, where nvidia-smi says what is wrong; healthy GPUs come first.
last_lines() {
  tail -n 3 <<<"$1" | tail -c 300
}

# empty_libraries: the driver's libraries that have 0 bytes. ldconfig leaves an empty file out of a new cache.
empty_libraries() {
  local file
  { { ldconfig -p || true; } 2>/dev/null | awk '$1 ~ /^lib(cuda|nvidia-ml)\.so\.1$/ { print $NF }'
    printf '%s\n' "${LIBRARY_FOLDERS[@]/%//libcuda.so.1}" "${LIBRARY_FOLDERS[@]/%//libnvidia-ml.so.1}"
  } | sort -u | while IFS= read -r file; do
    [[ ! -e $file || -s $file ]] || readlink -f "$file"
  done | sort -u
}

# pci_gpus: the folders of those of the PCI classes VGA and 3D controller.
pci_gpus() {
  nvidia_devices '0x030[02]*'
}

# nvidia_devices CLASS: the folders in sysfs of NVIDIA's devices whose PCI class matches the pattern; needs no driver.
nvidia_devices() {
  local device
  for device in "$PCI"/*; do
    # shellcheck disable=SC2053 # a pattern
    [[ $(cat "$device/vendor" "$device/class" 2>/dev/null | paste -sd ' ') != "0x10de "$1 ]] || printf '%s\n' "$device"
  done
}

# fabric_manager: version of NVIDIA Fabric Manager, "" if it is not installed, whether it is active, and the number of
# NVSwitches (class "other bridge") on the PCI bus.
fabric_manager() {
  local version
  version=$({ timeout 10 nv-fabricmanager --version 2>/dev/null || true; } | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1 || true)
  printf '{"version":%s,"active":%s,"nvswitches":%s}' "$(json "$version")" \
    "$(truth systemctl is-active --quiet nvidia-fabricmanager.service)" "$(nvidia_devices '0x0680*' | wc -l)"
}

# gdr: kernel modules for GPUDirect RDMA: nvidia-peermem (before: nv_peer_mem), or the open modules for DMA-BUF.
gdr() {
  printf '{"peermem":%s,"open_modules":%s}' \
    "$(truth test -d "$MODULES/nvidia_peermem" -o -d "$MODULES/nv_peer_mem")" \
    "$(truth grep -qs 'Open Kernel Module' /proc/driver/nvidia/version)"
}

# rdma_is_shared: whether pods see HCAs without a CNI plugin that moves them; a kernel that does not tell is shared.
rdma_is_shared() {
  [[ $(cat "$MODULES/ib_core/parameters/netns_mode" 2>/dev/null) != [N0] ]]
}

# hcas: [{"name","port","link_layer","state","rate","fw","active_mtu","pkeys","pci","netdevs","vfs","default_route"}],
# one per port; of a RoCE port also "gids" (their types), "netdev_mtu" and "qos".
hcas() {
  local port device list="" gateways mtus
  gateways=$({ ip route show default; ip -6 route show default 2>/dev/null || true; } |
    awk '{ for (i = 1; i < NF; i++) if ($i == "dev") print $(i + 1) }')
  mtus=$(active_mtus)
  for port in "$INFINIBAND"/*/ports/*; do
    [[ -d $port ]] || continue
    device=${port%/ports/*}
    list+="${list:+,}{\"name\":$(json "${device##*/}"),\"port\":${port##*/}"
    list+=",\"link_layer\":$(sysfs "$port/link_layer"),\"state\":$(sysfs "$port/state")"
    list+=",\"rate\":$(sysfs "$port/rate"),\"fw\":$(sysfs "$device/fw_ver")"
    list+=",\"active_mtu\":$(json "$(active_mtu "${device##*/}/${port##*/}" <<<"$mtus")"),\"pkeys\":{$(numbered "$port/pkeys")}"
    list+=",$(pci_function "$device/device" "$gateways")"
    [[ $(cat "$port/link_layer" 2>/dev/null) != Ethernet ]] || list+=",$(roce "$device" "$port")"
    list+="}"
  done
  printf '[%s]' "$list"
}

# active_mtus: "HCA/PORT MTU" of all ports; sysfs has no such file.
active_mtus() {
  { timeout "$DEVINFO_SECONDS" ibv_devinfo 2>/dev/null || true; } |
    awk '$1 == "hca_id:" { hca = $2 } $1 == "port:" { port = $2 } $1 == "active_mtu:" { print hca "/" port, $2 }'
}

# active_mtu HCA/PORT: the MTU among those on stdin, or why it is unknown.
active_mtu() {
  local mtu
  mtu=$(awk -v port="$1" '$1 == port { print $2 }')
  if [[ -n $mtu ]]; then
    printf '%s' "$mtu"
  elif command -v ibv_devinfo >/dev/null; then
    printf 'unknown: ibv_devinfo does not show it'
  else
    printf 'unknown: ibv_devinfo is not installed'
  fi
}

# numbered FOLDER: "NUMBER":"TEXT" of each entry of a table in sysfs; an empty entry is 0x0000, or cannot be read.
numbered() {
  (cd "$1" 2>/dev/null && grep -Hsv -e '^0x0000$' -e '^$' -- * || true) |
    awk -F : '{ printf "%s\"%s\":\"%s\"", comma, $1, $2; comma = "," }'
}

# roce DEVICE PORT: what only a RoCE port has.
roce() {
  local netdev
  netdev=$(first_netdev "$1/device")
  printf '"gids":{%s},"netdev_mtu":%s,"qos":%s' "$(numbered "$2/gid_attrs/types")" \
    "$(sysfs "$1/device/net/$netdev/mtu")" "$(qos "$1" "${2##*/}")"
}

# pci_function LINK INTERFACES: the PCI function of an HCA, and what makes the SR-IOV device plugin leave it out:
# VFs, or the default route (pkg/netdevice/netDeviceProvider.go).
pci_function() {
  local link=$1 gateways=$2 address netdev list="" vfs route=false
  address=$(readlink "$link" || true)
  address=${address##*/}
  [[ $address =~ ^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$ ]] || address=""
  for netdev in "$link"/net/*; do
    [[ -e $netdev ]] || continue
    netdev=${netdev##*/}
    list+="${list:+,}$(json "$netdev")"
    ! grep -qxF "$netdev" <<<"$gateways" || route=true
  done
  vfs=$(cat "$link/sriov_numvfs" 2>/dev/null || echo 0)
  printf '"pci":"%s","netdevs":[%s],"vfs":%s,"default_route":%s' "$address" "$list" "$vfs" "$route"
}

sysfs() {
  json "$(cat "$1" 2>/dev/null || true)"
}

# qos DEVICE PORT: what decides whether traffic of a RoCE port is lost under congestion; null is what cannot be read.
# {"mlnx_qos","dcb_pfc","dcb_app"}: what these programs print about its network interface. {"ecn_np","ecn_rp"}: for each
# of the 8 priorities 1 where DCQCN is on, as notification and as reaction point. "traffic_class": the driver's override.
# The last three are files of DOCA-OFED's mlx5 driver; the kernel's own has none.
qos() {
  local device=$1 port=$2 netdev
  netdev=$(first_netdev "$device/device")
  printf '{"mlnx_qos":%s' "$(printed mlnx_qos -i "$netdev")"
  printf ',"dcb_pfc":%s' "$(printed dcb pfc show dev "$netdev" prio-pfc)"
  # -N: numbers, where DSCPs have names.
  printf ',"dcb_app":%s' "$(printed dcb -N app show dev "$netdev" dscp-prio)"
  printf ',"ecn_np":%s' "$(enabled "$device/device/net/$netdev/ecn/roce_np/enable")"
  printf ',"ecn_rp":%s' "$(enabled "$device/device/net/$netdev/ecn/roce_rp/enable")"
  printf ',"traffic_class":%s}' "$(printed cat "$device/tc/$port/traffic_class")"
}

first_netdev() {
  local netdev
  for netdev in "$1"/net/*; do
    [[ ! -e $netdev ]] || { printf '%s' "${netdev##*/}"; return; }
  done
}

# printed COMMAND...: what it prints, as a JSON string; null if it is not installed or fails.
printed() {
  local text
  if command -v "$1" >/dev/null && text=$(timeout "$QOS_SECONDS" "$@" 2>/dev/null); then json "$text"; else printf null; fi
}

# enabled FOLDER: its files 0 to 7 in one JSON string; null if one cannot be read.
enabled() {
  local priority text=""
  for priority in {0..7}; do
    text+=$(cat "$1/$priority" 2>/dev/null) || { printf null; return; }
  done
  json "$text"
}
