#!/usr/bin/env bash
# A K3s agent: joined and Ready, or with VERB=remove taken off the host. Its Node is deleted through the API (busbar remove
# nodes).
#
# Values: OWNER, INSTALL_ID, NODE_NAME, NODE_ADDRESS, VERSION, URL_AMD64, SHA256_AMD64 (or ARM64), IMAGES (lines "sha256 url"),
#   RUNNING_JOBS, JOBS_SECONDS, DRAIN, DRAIN_SECONDS, PAUSE_SECONDS (k3s-drain.sh), ROTATE_CERTIFICATES (k3s-rotation.sh).
# Payload: config (config.yaml without node-ip, flannel-iface), registries (registries.yaml, may be empty), proxy (drop-in of the
#   unit with the environment of a proxy, may be left out).
# Facts: {"node","version"}, of a removal {"removed"}
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner k3s-lib k3s-rotation k3s-drain k3s-remove

UNIT=k3s-agent
READY_DEADLINE=420
KUBELET_KUBECONFIG=/var/lib/rancher/k3s/agent/kubelet.kubeconfig

main() {
  begin_verb install remove
  acquire_lock
  "${VERB}_agent"
}

remove_agent() {
  may_remove || return 0
  k3s_uninstall "$UNIT"
}

install_agent() {
  local address
  k3s_refuse_other_role k3s
  address=$(k3s_node_address)
  claim_host worker
  record_preexisting_files
  k3s_download
  restart_after_drift "$UNIT" "$KUBELET_KUBECONFIG"
  with_rotations "$UNIT" apply_agent "$address"
  apply_labels
  k3s_record_machine "$UNIT" "$KUBELET_KUBECONFIG"
  poll 60 uncordon || die "uncordoning Node $NODE_NAME failed" "retry, or run: kubectl uncordon $NODE_NAME"
  record_applied_hash "$UNIT"
  pause_after_restart
  printf '{"node":%s,"version":%s}\n' "$(json "$NODE_NAME")" "$(json "$(k3s_version)")"
}

# apply_agent LINE: with a line of config.yaml that depends on this host.
apply_agent() {
  k3s_write_files "$UNIT" agent "$1"
  # A Node that was deleted has no pods to wait for.
  if [[ -z ${K3S_NODE_IS_DELETED:-} ]] && ! k3s_is_current "$UNIT" && systemctl is-active --quiet "$UNIT"; then
    prepare_restart
  fi
  k3s_start "$UNIT"
  await_node
  if ! k3s_has_pod_network_of_node "$KUBELET_KUBECONFIG"; then
    k3s_renew_pod_network "$UNIT" "$KUBELET_KUBECONFIG"
    await_node
  fi
}

await_node() {
  k3s_await "$UNIT" "$(k3s_ready_seconds "$READY_DEADLINE")" "Node $NODE_NAME Ready" k3s_is_back "$UNIT" "$KUBELET_KUBECONFIG"
}

# apply_labels: K3s sets labels only when the node registers, so changes are applied here, in the batches of a pool. The
# kubelet's rights are enough for labels, not for taints. kubectl changes nothing where the Node has all of them.
apply_labels() {
  local record=$STATE_DIR/labels label changes=()
  mapfile -t changes < <(desired_value node-label)
  while read -r label; do
    [[ " ${changes[*]} " == *" ${label%%=*}="* ]] || changes+=("${label%%=*}-")
  done < <(cat "$record" 2>/dev/null || true)
  ((${#changes[@]} == 0)) || poll 60 as_kubelet label node "$NODE_NAME" --overwrite "${changes[@]}" >/dev/null ||
    die "setting the labels failed: ${changes[*]}" "set them by hand: kubectl label node $NODE_NAME ${changes[*]}"
  desired_value node-label | write_file "$record" 0600
}

main
