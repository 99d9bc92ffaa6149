#!/usr/bin/env bash
# Removes what busbar and K3s made on a host, or only pods and their network; nothing that was there before.

POD_CIDR_DEADLINE=60

# k3s_may_remove: as may_remove, and K3s is still that of busbar: a host that was lent may have the data of another cluster.
k3s_may_remove() {
  local file=$K3S_UNITS/$UNIT.service
  may_remove || return 1
  [[ ! -e $file ]] || grep -qs '^# Written by busbar' "$file" ||
    die "others have installed K3s over that of busbar ($UNIT.service); no changes made" \
      "if it is theirs: rm -r $STATE_DIR here, which leaves it to them; else, which deletes its data: systemctl disable --now $UNIT; rm $file; and retry"
}

k3s_uninstall() {
  stop_unit "$UNIT"
  k3s_kill_pods
  k3s_unmount /run/k3s
  k3s_unmount "$KUBELET_DIR"
  k3s_remove_network
  rm -rf "/etc/systemd/system/$UNIT.service" "/etc/systemd/system/$UNIT.service.d"/{10-busbar-memlock.conf,"$K3S_PROXY_DROP_IN"}
  rmdir --ignore-fail-on-non-empty "/etc/systemd/system/$UNIT.service.d" 2>/dev/null || true
  systemctl daemon-reload
  systemctl reset-failed "$UNIT" 2>/dev/null || true
  restore_original "$K3S"
  rm -f /etc/sysctl.d/90-busbar-kubelet.conf
  rm -f "$K3S_CONFIG_DIR/config.yaml"
  # An agent writes neither of these.
  [[ $UNIT != k3s ]] || { rm -f "$K3S_CONFIG_DIR/k3s.yaml" && restore_original "$K3S_AUTH_CONFIG"; }
  [[ ! -s $STATE_DIR/registries.written ]] || restore_original "$K3S_CONFIG_DIR/registries.yaml"
  # /etc/rancher/node/password stays, as with K3s's own script: with it this machine may join its former Node again.
  rmdir --ignore-fail-on-non-empty "$K3S_CONFIG_DIR" /etc/rancher 2>/dev/null || true
  rm -rf /run/k3s /run/flannel "$KUBECACHEDIR"
  k3s_remove_data
  k3s_remove_made
  remove_state
  removed true
}

# KillMode=process leaves the pods running: kills containerd and shims of this host's K3s (not of k3d), and all below them.
k3s_kill_pods() {
  local pids
  pids=$(ps -e -o pid= -o ppid= -o pidns= -o args= | awk -v here="$(stat -Lc %i "/proc/$$/ns/pid")" '
    { parent[$1] = $2; order[++count] = $1 }
    $3 == here && $4 ~ /(^|\/)containerd[^\/]*$/ && /\/k3s\// { to_kill[$1] = 1 }
    END {
      do {
        grown = 0
        for (i = 1; i <= count; i++)
          if (!(order[i] in to_kill) && (parent[order[i]] in to_kill)) { to_kill[order[i]] = 1; grown = 1 }
      } while (grown)
      for (pid in to_kill) print pid
    }')
  # shellcheck disable=SC2086 # a list of numbers
  [[ -z $pids ]] || { kill -KILL $pids && poll 5 fails kill -0 $pids; } 2>/dev/null || true
}

# k3s_unmount DIRECTORY: unmounts everything below it, innermost first, except disks of the site.
k3s_unmount() {
  local target
  while read -r target; do
    umount -- "$target" 2>/dev/null || umount -l -- "$target" 2>/dev/null || true
  done < <(mounts_below "$1" | site_mounts_left_out | sort -r)
}

# site_mounts_left_out: the mount points on stdin, without those from before K3s.
site_mounts_left_out() {
  grep -vxF -f <(cat "$STATE_DIR/mounts" 2>/dev/null || true) || [[ $? == 1 ]]
}

# k3s_is_unmounted DIRECTORY: whether nothing is mounted below it, such as a volume with data, except disks of the site.
k3s_is_unmounted() {
  [[ -z $(mounts_below "$1" | site_mounts_left_out) ]]
}

# k3s_remove_network: removes interfaces, network namespaces and packet filter rules of the pods, which have ended. Containers
# of others use CNI too (podman 3: pkg/netns/netns_linux.go): theirs run on.
k3s_remove_network() {
  local link table key network chains="CNI-"
  while read -r link; do
    if [[ -n $(ip netns pids "$link" 2>/dev/null) ]]; then
      chains=cbr0
    else
      ip netns delete "$link" 2>/dev/null || true
    fi
  done < <(ip netns list 2>/dev/null | awk '/^cni-/ { print $1 }')
  while read -r link; do
    ip link delete "${link%%@*}" 2>/dev/null || true
  done < <(ip -o link show | awk -F': ' '/master cni0/ { print $2 }')
  for link in cni0 flannel.1 flannel-v6.1 flannel-wg flannel-wg-v6 kube-ipvs0; do
    ip link delete "$link" 2>/dev/null || true
  done
  # flannel's backend host-gw leaves the routes to other nodes' pods: with them the host cannot join again.
  while IFS='=' read -r key network; do
    if [[ $key == FLANNEL_NETWORK ]]; then ip -4 route flush root "$network" || true; fi
    if [[ $key == FLANNEL_IPV6_NETWORK ]]; then ip -6 route flush root "$network" || true; fi
  done < <(cat /run/flannel/subnet.env 2>/dev/null || true)
  rm -rf /var/lib/cni/networks/cbr0 /var/lib/cni/results/cbr0-* /var/lib/cni/flannel
  for table in iptables ip6tables; do
    command -v "$table-save" >/dev/null || continue
    "$table-save" 2>/dev/null | awk -v chains="KUBE-|$chains" '$0 !~ chains && tolower($0) !~ /flannel/' |
      "$table-restore" 2>/dev/null ||
      note "rules of Kubernetes may remain in $table; a reboot clears them"
  done
}

# k3s_has_pod_network_of_node: whether the bridge of the pods, if there is one, has the pod CIDR of this host's Node.
# A renamed host, or one whose Node was deleted, gets another CIDR; with the former bridge no pod starts ("cni0 already has an
# IP address different from ...").
k3s_has_pod_network_of_node() {
  local bridge network
  bridge=$(ip -o -4 addr show dev cni0 2>/dev/null | awk '{ print $4; exit }')
  poll "$POD_CIDR_DEADLINE" read_pod_cidr || die "the pod CIDR of Node $NODE_NAME is unknown: the API is not responding" "retry"
  [[ -n $bridge && $POD_CIDR == *.*/* ]] || return 0
  network=${POD_CIDR%/*}
  [[ $bridge == "${network%.*}.$((${network##*.} + 1))/${POD_CIDR#*/}" ]]
}

# read_pod_cidr: sets POD_CIDR. An agent that has just restarted may lose its connection to the API again.
read_pod_cidr() {
  POD_CIDR=$(api 30 get node "$NODE_NAME" -o 'jsonpath={.spec.podCIDR}')
}

# k3s_renew_pod_network: ends the pods here, which start again with addresses of the Node's CIDR; returns with the
# unit started. flannel took the MAC address of the former link into the Node, and would give it to the new one: then the other
# nodes forget the way to this host when the former Node, of the same address, is deleted (flannel v0.27.4, pkg/backend/vxlan).
k3s_renew_pod_network() {
  note "the pod CIDR of this Node has changed: restarting its pods and their network"
  api 30 annotate node "$NODE_NAME" flannel.alpha.coreos.com/backend-data- flannel.alpha.coreos.com/backend-v6-data- >/dev/null ||
    die "removing flannel's MAC address from Node $NODE_NAME failed: the API is not responding" "retry"
  timeout 120 systemctl stop "$UNIT" || die "$UNIT did not stop" "see: systemctl status $UNIT; journalctl -u $UNIT"
  k3s_kill_pods
  k3s_remove_network
  k3s_restart
}

# k3s_remove_made: what Kubernetes made outside of its folders, if it was not there before.
k3s_remove_made() {
  local path
  while read -r path; do
    rm -rf "${path:?}"
    rmdir --ignore-fail-on-non-empty "$(dirname "$path")" 2>/dev/null || true
  done < <(printf '%s\n' "${K3S_MADE[@]}" | grep -xFf - "$STATE_DIR/absent" 2>/dev/null || true)
}

# k3s_remove_data: empties the folders, which may be mounts and then stay. Files from before K3s are never moved.
k3s_remove_data() {
  if [[ -d $K3S_DATA_DIR ]]; then
    k3s_is_unmounted "$K3S_DATA_DIR" ||
      die "mounted after the installation of K3s, below its folder: $(mounts_below "$K3S_DATA_DIR" | site_mounts_left_out | paste -sd ' ')" \
        "umount it and retry; to empty a disk and keep it mounted, add the line to $STATE_DIR/mounts first"
    k3s_delete_new "$K3S_DATA_DIR" "$STATE_DIR/preexisting" ||
      die "emptying $K3S_DATA_DIR failed" "find what still uses it: findmnt -R $K3S_DATA_DIR; fuser -vm $K3S_DATA_DIR"
    rmdir --ignore-fail-on-non-empty "$K3S_DATA_DIR" /var/lib/rancher 2>/dev/null || true
  fi
  if [[ -d $KUBELET_DIR ]]; then
    touch "$STATE_DIR/preexisting-kubelet"
    { k3s_is_unmounted "$KUBELET_DIR" && k3s_delete_new "$KUBELET_DIR" "$STATE_DIR/preexisting-kubelet" 2>/dev/null; } ||
      note "part of $KUBELET_DIR is in use and remains until the next reboot"
    rmdir --ignore-fail-on-non-empty "$KUBELET_DIR" 2>/dev/null || true
  fi
}

# k3s_delete_new DIRECTORY LIST: deletes everything except the files in the list (lines "./a/b") and their folders.
# It works on the directory's disk and on the disks of the site below it, which stay mounted.
k3s_delete_new() (
  local disks keep=(! -name lost+found) disk
  cd -P "$1" || return 1
  # The innermost first, relative to the directory.
  mapfile -t disks < <(mounts_below "$1" | { grep -xF -f "$STATE_DIR/mounts" 2>/dev/null || true; } | sed "s|^$PWD/|./|" | sort -r)
  for disk in "${disks[@]}"; do keep+=(! -path "$disk"); done
  for disk in "${disks[@]}" .; do
    find "$disk" -xdev ! -type d -print0 | { grep -zvxFf "$2" || [[ $? == 1 ]]; } | xargs -0 -r rm -f -- &&
      find "$disk" -xdev -mindepth 1 -depth -type d "${keep[@]}" -empty -delete || return 1
  done
)
