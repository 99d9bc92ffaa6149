#!/usr/bin/env bash
# A K3s agent: joined and Ready, or with VERB=remove taken off the host. Its Node is deleted through the API (busbar remove
# nodes).
#
# Values: OWNER, INSTALL_ID, NODE_NAME, NODE_ADDRESS, VERSION, URL_AMD64, SHA256_AMD64 (or ARM64), IMAGES (lines "sha256 url"),
#   ROTATE_CERTIFICATES (k3s-rotation.sh); of the pool, for an agent that runs and has to restart: RUNNING_JOBS (keep, wait, refuse),
#   JOBS_SECONDS (of wait), DRAIN (never, upgrade, always), PAUSE_SECONDS.
# Payload: config (config.yaml without node-ip, flannel-iface), registries (registries.yaml, may be empty), proxy (drop-in of the
#   unit with the environment of a proxy, may be left out).
# Facts: {"node","version"}, of a removal {"node","removed","node_again"}
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner k3s-api k3s-lib k3s-rotation k3s-remove

UNIT=k3s-agent
READY_DEADLINE=420
# With the rights of the kubelet, which may read its Node and the pods bound to it, and annotate its Node.
# shellcheck disable=SC2034 # read by k3s-api.sh
KUBECONFIG_FILE=$K3S_DATA_DIR/agent/kubelet.kubeconfig

main() {
  begin_verb install remove
  acquire_lock
  "${VERB}_agent"
}

remove_agent() {
  k3s_may_remove || return 0
  # The GPU Operator's pods restart K3s when they end, and the kubelet then registers the deleted Node again. Such a Node lacks
  # the note of the installation.
  # shellcheck disable=SC2034 # read by owner.sh
  [[ $(node_field "$NODE_NAME" '{.metadata.name}|{.metadata.annotations.busbar/machine}' || true) != ?*"|" ]] || NODE_AGAIN=true
  k3s_uninstall
}

install_agent() {
  local address
  k3s_refuse_conflicts k3s
  address=$(k3s_node_address)
  await_jobs_of_former_name
  claim_host worker
  record_preexisting_files
  k3s_download
  restart_after_drift
  with_rotations apply_agent "$address"
  k3s_record_machine
  record_applied_hash
  pause_after_restart
  printf '{"node":%s,"version":%s}\n' "$(json "$NODE_NAME")" "$(json "$(k3s_version)")"
}

# apply_agent LINE: with a line of config.yaml that depends on this host.
apply_agent() {
  k3s_write_files agent "$1"
  # A Node that was deleted has no pods to wait for.
  if [[ -z ${K3S_NODE_IS_DELETED:-} ]] && ! k3s_is_current && systemctl is-active --quiet "$UNIT"; then
    prepare_restart
  fi
  k3s_start
  await_node
  if ! k3s_has_pod_network_of_node; then
    k3s_renew_pod_network
    await_node
  fi
}

# prepare_restart: returns when this agent may restart. Nothing can be drained from a Node that is not Ready.
prepare_restart() {
  poll 20 k3s_node_is_ready || return 0
  [[ $RUNNING_JOBS == keep ]] || await_jobs
  ! needs_drain || is_drained || ask_for_drain
  IS_PREPARED=true
}

# await_jobs_of_former_name: with another name the pods here end, and the API knows neither them nor their Node by it.
await_jobs_of_former_name() {
  local former
  former=$({ cat "$K3S_CONFIG_DIR/config.yaml" 2>/dev/null || true; } | config_value node-name)
  [[ -z $former || $former == "$NODE_NAME" || $RUNNING_JOBS == keep ]] || ! systemctl is-active --quiet "$UNIT" ||
    NODE_NAME=$former await_jobs
}

# await_jobs: without an answer of the API a job may run.
await_jobs() {
  local running looks=0 deadline=$((SECONDS + JOBS_SECONDS))
  while running=$(running_jobs) || running="unknown, the API is not responding"; [[ -n $running ]]; do
    [[ $RUNNING_JOBS == wait ]] ||
      die "jobs are running here: $running; the agent was not restarted" \
        "retry when they have ended, or set running_jobs of this worker's pool"
    ((SECONDS < deadline)) || die "jobs are still running here after $JOBS_SECONDS s: $running" "retry when they have ended"
    # A connection that broke ends the script at the next note.
    ((looks++ % 10)) || note "waiting for jobs to end: $running"
    sleep 3
  done
}

# running_jobs: NAMESPACE/NAME of the pods of jobs of any kind (Job, MPIJob) on this Node.
running_jobs() {
  api 30 get pods -A --field-selector "spec.nodeName=$NODE_NAME,status.phase=Running" \
    -o 'jsonpath={range .items[*]}{.metadata.ownerReferences[0].kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}' |
    awk '$1 ~ /Job$/ { print $2 }' | paste -sd ' '
}

# needs_drain: without an answer on the version of the kubelet the worker is drained.
needs_drain() {
  [[ $DRAIN == always || ($DRAIN == upgrade && $(node_field "$NODE_NAME" '{.status.nodeInfo.kubeletVersion}' || true) != "$VERSION") ]]
}

# is_drained: whether this update has drained the worker (busbar/kube/drain.py).
is_drained() {
  [[ -n $(node_field "$NODE_NAME" '{.metadata.annotations.busbar/cordoned}' || true) ]]
}

# ask_for_drain: the program that runs this script drains the worker then, and runs it again (components/engine/node_steps.py).
# By hand: kubectl drain, then this script with DRAIN=never.
ask_for_drain() {
  # What this run has written is no change of somebody else.
  rm -f "$STATE_DIR/applied.sha256"
  note "the agent has to restart, and its pods have to leave before: draining the worker"
  echo '{"not_drained": true}' >&2
  exit 1
}

# pause_after_restart: the next agents restart when this Node has been Ready for PAUSE_SECONDS.
pause_after_restart() {
  local since=$SECONDS
  [[ -n ${IS_PREPARED:-} ]] || return 0
  while ((SECONDS < since + PAUSE_SECONDS)); do
    poll 60 k3s_is_back ||
      die "Node $NODE_NAME is no longer Ready, $((SECONDS - since)) s after its restart" "see: journalctl -u $UNIT"
    sleep 3
  done
}

await_node() {
  k3s_await "$(k3s_ready_seconds "$READY_DEADLINE")" "Node $NODE_NAME Ready" k3s_is_back
}

main
