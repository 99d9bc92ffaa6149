#!/usr/bin/env bash
# Deletes the Node of a removed host: a worker is drained first, a server that is gone leaves etcd first. Runs on any
# server. The only verb is VERB=remove.
#
# Values: NODE_NAME, ROLE (worker, server). Safe to run again: a Node that does not exist is not an error. A Node of a
# configured host (ConfigMap of k3s-nodes.sh) is left alone; so is every Node without that ConfigMap.
# Facts: {"node","removed","cluster"}; cluster is false if no K3s runs here, or if all of it is being removed.
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib k3s-api; do
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

DRAIN_SECONDS=300

main() {
  begin
  [[ $VERB == remove ]] || die "VERB=$VERB is unknown" "use remove"
  local names node
  : "${ROLE:=worker}"
  if ! systemctl is-active --quiet k3s || is_torn_down; then
    facts false false
    return
  fi
  names=$(configured "$ROLE") ||
    die "the Kubernetes API on this server does not answer" "see: systemctl status k3s"
  if [[ -z $names ]]; then
    note "the cluster has no list of its configured hosts (ConfigMap kube-system/$CONFIGURED); Node $NODE_NAME stays"
    facts false true
    return
  fi
  if grep -xF "$NODE_NAME" <<<"$names" >/dev/null; then
    note "the configuration contains $ROLE $NODE_NAME; its Node stays"
    facts false true
    return
  fi
  node=$(node_field "$NODE_NAME" '{.metadata.name}') ||
    die "the Kubernetes API on this server does not answer" "see: systemctl status k3s"
  if [[ -n $node ]]; then
    if [[ $ROLE == worker ]]; then drain; else leave_as_lost_server; fi
    delete_node "$NODE_NAME" ||
      die "deleting Node $NODE_NAME failed" "run on a server: k3s kubectl delete node $NODE_NAME"
  fi
  facts true true
}

# facts REMOVED CLUSTER
facts() {
  printf '{"node":%s,"removed":%s,"cluster":%s}\n' "$(json "$NODE_NAME")" "$1" "$2"
}

leave_as_lost_server() {
  leave_etcd "$NODE_NAME" ||
    die "$NODE_NAME is still a member of etcd after $MEMBER_DEADLINE s" "see: journalctl -u k3s; then retry"
}

# drain: nothing runs on a Node whose machine has another name now.
drain() {
  local machine
  machine=$(node_field "$NODE_NAME" '{.metadata.annotations.busbar/machine}')
  if [[ -n $machine && $(nodes_of_machine "$machine") -gt 1 ]]; then
    note "the machine of Node $NODE_NAME is another Node now; nothing to drain"
    return
  fi
  if node_is_not_ready "$NODE_NAME"; then
    note "Node $NODE_NAME is not Ready: nothing there can be drained; its pods start again elsewhere"
    return
  fi
  api "$DRAIN_SECONDS" drain "$NODE_NAME" --ignore-daemonsets --delete-emptydir-data --force \
    --timeout="$((DRAIN_SECONDS - 20))s" >&2 ||
    note "drain timed out after $DRAIN_SECONDS s (a disruption budget?); deleting the Node anyway"
}

nodes_of_machine() {
  api 30 get nodes -o 'jsonpath={range .items[*]}{.metadata.annotations.busbar/machine}{"\n"}{end}' |
    awk -v machine="$1" '$1 == machine { count++ } END { print count + 0 }'
}

main
