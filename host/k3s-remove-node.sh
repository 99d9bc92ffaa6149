#!/usr/bin/env bash
# Takes a server that is gone out of etcd, and deletes its Node. Runs on any other server. The only verb is VERB=remove.
#
# Values: NODE_NAME. Safe to run again: a Node that does not exist is not an error. A Node of a configured server
# (ConfigMap of k3s-nodes.sh) is left alone; so is every Node without that ConfigMap.
# Facts: {"node","removed","cluster"}; cluster is false if no K3s runs here, or if all of it is being removed.
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib k3s-api

main() {
  begin
  [[ $VERB == remove ]] || die "VERB=$VERB is unknown" "use remove"
  local names node
  if ! systemctl is-active --quiet k3s || is_torn_down; then
    facts false false
    return
  fi
  names=$(configured_servers) ||
    die "the Kubernetes API on this server is not responding" "see: systemctl status k3s"
  if [[ -z $names ]]; then
    note "the cluster has no list of its configured servers (ConfigMap kube-system/$CONFIGURED); Node $NODE_NAME stays"
    facts false true
    return
  fi
  if grep -xF "$NODE_NAME" <<<"$names" >/dev/null; then
    note "the configuration contains server $NODE_NAME; its Node stays"
    facts false true
    return
  fi
  node=$(node_field "$NODE_NAME" '{.metadata.name}') ||
    die "the Kubernetes API on this server is not responding" "see: systemctl status k3s"
  if [[ -n $node ]]; then
    leave_etcd "$NODE_NAME" ||
      die "$NODE_NAME is still a member of etcd after $MEMBER_DEADLINE s" "see: journalctl -u k3s; then retry"
    delete_node "$NODE_NAME" ||
      die "deleting Node $NODE_NAME failed" "run on a server: k3s kubectl delete node $NODE_NAME"
  fi
  facts true true
}

# facts REMOVED CLUSTER
facts() {
  printf '{"node":%s,"removed":%s,"cluster":%s}\n' "$(json "$NODE_NAME")" "$1" "$2"
}

main
