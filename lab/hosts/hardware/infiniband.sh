#!/bin/bash
# Simulated HCAs of a host of the lab: /sys/class/infiniband as the mlx5 driver shows it.
#
#   infiniband.sh        reads /usr/local/lib/busbar-lab/hcas: lines "NAME RATE STATE", such as
#                        "mlx5_0 400 ACTIVE"
#
# sysfs cannot be written, so /sys/class becomes a tmpfs in which every real class is bind-mounted again; the
# classes' relative links (../../devices/...) lead to the same places as before.
set -euo pipefail

hcas=/usr/local/lib/busbar-lab/hcas
stage=/run/busbar-lab/class

[[ -s $hcas ]] || exit 0
[[ -d /sys/class/infiniband ]] && exit 0

mkdir -p "$stage"
mount -t tmpfs -o mode=0755,size=4m busbar-lab-class "$stage"
for class in /sys/class/*/; do
  name=$(basename "$class")
  mkdir "$stage/$name"
  mount --bind "$class" "$stage/$name"
done

# As mlx5 has them; here they are files that a drill may write.
counters='VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors
  multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets
  port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data
  port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets unicast_xmit_packets'
hw_counters='local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets out_of_buffer out_of_sequence packet_seq_err
  rnr_nak_retry_err roce_slow_restart rp_cnp_handled'

# Every port of a fabric has a GUID of its own.
machine=$(sed -E 's/^(.{4})(.{4}).*/\1:\2/' /etc/machine-id)
number=0
while read -r hca rate state; do
  folder=$stage/infiniband/$hca
  address=$(printf '0000:%02x:00.0' $((32 + number)))
  mkdir -p "$folder/ports/1/gids" "$folder/ports/1/pkeys"
  printf '0xffff\n' > "$folder/ports/1/pkeys/0"
  printf '0x0000\n' > "$folder/ports/1/pkeys/1"
  # The device plugin of the lab has the same. The link leads nowhere; its name is the PCI address.
  ln -s "../../../devices/pci0000:00/$address" "$folder/device"
  printf 'MT4129\n' > "$folder/hca_type"
  printf '28.43.2566\n' > "$folder/fw_ver"
  printf 'busbar-lab simulated HCA\n' > "$folder/board_id"
  printf 'b83f:%s:%04x\n' "$machine" "$number" > "$folder/node_guid"
  printf '1: CA\n' > "$folder/node_type"
  printf 'InfiniBand\n' > "$folder/ports/1/link_layer"
  case $rate in
    200) printf '200 Gb/sec (4X HDR)\n' ;;
    400) printf '400 Gb/sec (4X NDR)\n' ;;
    *) printf 'infiniband.sh: %s has the rate %s, expected 200 or 400\n' "$hca" "$rate" >&2; exit 1 ;;
  esac > "$folder/ports/1/rate"
  case $state in
    ACTIVE) number_of_state=4 physical='5: LinkUp' ;;
    DOWN) number_of_state=1 physical='2: Polling' ;;
    *) printf 'infiniband.sh: %s is in state %s, expected ACTIVE or DOWN\n' "$hca" "$state" >&2; exit 1 ;;
  esac
  printf '%s: %s\n' "$number_of_state" "$state" > "$folder/ports/1/state"
  printf '%s\n' "$physical" > "$folder/ports/1/phys_state"
  printf '0x%x\n' $((16 + number)) > "$folder/ports/1/lid"
  printf 'fe80:0000:0000:0000:b83f:%s:%04x\n' "$machine" "$number" > "$folder/ports/1/gids/0"
  mkdir "$folder/ports/1/counters" "$folder/ports/1/hw_counters"
  for counter in $counters; do printf '0\n' > "$folder/ports/1/counters/$counter"; done
  for counter in $hw_counters; do printf '0\n' > "$folder/ports/1/hw_counters/$counter"; done
  number=$((number + 1))
done < "$hcas"

mount --rbind "$stage" /sys/class
# Mounts are shared inside a host: without this, unmounting the one place would empty the other.
mount --make-rprivate "$stage"
umount --recursive --lazy "$stage"
