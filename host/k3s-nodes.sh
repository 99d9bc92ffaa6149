#!/usr/bin/env bash
# Prepares the cluster for the hosts of the configuration, and takes servers out of it. Runs on a server. Safe to run again.
#   VERB=install   prepares the cluster, before the hosts join
#   VERB=remove    takes the server NODE_NAME, which is gone, out of etcd, and deletes its Node. A Node of a configured server is
#     left alone, and so is every Node where the cluster does not know its configured servers
#   VERB=teardown  the whole cluster is being removed: the removal of this server does not leave etcd, which would need a majority
#     of the servers. It is forgotten with the removal, an installation, after an hour, or by VERB=keep
#
# K3s refuses a machine that joins under the name of another one (its password, its etcd member). So the Node of a
# machine that was replaced is deleted first: only if preflight found another machine behind the name (machine-id)
# than the Node was made on, or no K3s on it after the Node was made, and only if that Node is not Ready.
#
# A server that is not configured any more and not Ready leaves etcd first: with it as a member, the next one to stop
# would cost the quorum.
#
# Values: NODE_NAME; INSTALL_ID (of the cluster: another one is left alone); AFTER (true: this step runs after the installation of this server, else also before K3s is here).
# Payload: machines (lines "NODE MACHINE [EPOCH]"; EPOCH: preflight found no K3s there then), servers (lines "NODE": all of the configuration. They are noted in the
#   cluster; none of them leaves etcd when only its resource is removed).
# Facts: of install {"node","ca_sha256"}: of the cluster's CA, empty where K3s is not installed; of remove
#   {"node","cluster"}: cluster is false if no K3s of the cluster runs here, or if all of it is being removed; else {"node"}.
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib owner k3s-api

# The Node of a machine that is off becomes NotReady after 40 to 50 s.
NOT_READY_DEADLINE=120
START_DEADLINE=60
ETCD_DATA=$K3S_DATA_DIR/server/db/etcd

main() {
  begin_verb install remove teardown keep
  if [[ $VERB != install && -n ${INSTALL_ID:-} && $(owner_field install_id) != "$INSTALL_ID" ]]; then
    note "this host belongs to another cluster ($(owner_field owner)); no changes made"
    printf '{"node":%s,"cluster":false}\n' "$(json "$NODE_NAME")"
    return
  fi
  case $VERB in
    install) refuse_other_cluster; prepare_hosts ;;
    remove) remove_gone ;;
    teardown) touch "$TEARDOWN" ;;
    keep) rm -f "$TEARDOWN" ;;
  esac
  [[ $VERB == @(install|remove) ]] || printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

prepare_hosts() {
  if is_removed; then
    # It joins again in its own step. Until then the other servers are the cluster.
    [[ ${AFTER:-} != true ]] ||
      die "etcd has removed this server, because its Node was deleted" "busbar up STACK --converge $NODE_NAME"
    note "etcd has removed this server, so nothing is prepared here"
  else
    prepare_cluster
  fi
  printf '{"node":%s,"ca_sha256":%s}\n' "$(json "$NODE_NAME")" "$(json "$(ca_sha256)")"
}

prepare_cluster() {
  local nodes
  [[ ${AFTER:-} != true ]] || poll "$START_DEADLINE" systemctl is-active --quiet k3s ||
    die "K3s is not running here, so the cluster does not know its configured hosts" "busbar verify STACK; where it finds K3s: journalctl -u k3s"
  # Without it a new machine as server 1 would find no cluster to join, and begin a second one.
  if [[ -d $ETCD_DATA ]]; then
    # Somebody has stopped it; it starts as at the next boot. A restore and a removal disable the unit.
    if systemctl is-enabled --quiet k3s && [[ $(systemctl is-active k3s || true) == inactive ]]; then
      note "K3s is stopped here: starting it"
      systemctl --no-block start k3s
    fi
    poll "$START_DEADLINE" systemctl is-active --quiet k3s ||
      die "K3s is installed here and not running, so server 1 cannot join its cluster" \
        "systemctl start k3s; if it fails, see: journalctl -u k3s; then retry"
  fi
  systemctl is-active --quiet k3s || return 0
  nodes=$(cluster_nodes) || die "the Kubernetes API on this server is not responding" "see: systemctl status k3s"
  remove_lost_servers "$nodes"
  replace_nodes "$nodes"
  [[ ${AFTER:-} != true ]] || note_hosts
}

# note_hosts: the names of the configured servers.
note_hosts() {
  api 30 apply -f - >&2 <<EOF || die "recording the hosts in the cluster failed" "repair what kubectl names above, then retry"
apiVersion: v1
kind: ConfigMap
metadata: {name: $CONFIGURED, namespace: kube-system}
data:
  servers: |-
$(payload servers | sed 's/^/    /')
EOF
}

# remove_lost_servers NODES: a server that busbar has made has its note on the Node, or is in the list of the last update.
remove_lost_servers() {
  local names node machine etcd before
  names=$(payload servers)
  [[ -n $names ]] || return 0
  before=$(configured_servers) || die "the list of the configured servers cannot be read" "see: systemctl status k3s"
  while IFS='|' read -r node machine etcd _; do
    if [[ $etcd != true ]] || grep -xF "$node" <<<"$names" >/dev/null || node_is_ready "$node"; then continue; fi
    [[ -n $machine ]] || grep -xF "$node" <<<"$before" >/dev/null || continue
    note "server $node is no longer configured, and not Ready: removing it from etcd before anything else changes"
    remove_node "$node"
  done <<<"$1"
}

# replace_nodes NODES
replace_nodes() {
  local node machine empty_at before created
  while read -r node machine empty_at; do
    IFS='|' read -r _ before _ created <<<"$(awk -F'|' -v node="$node" '$1 == node' <<<"$1")"
    [[ -n $machine && -n $before && $before != "$machine" ]] || is_older "$created" "$empty_at" || continue
    replace_node "$node"
  done <<<"$(payload machines)"
}

# is_older TIME EPOCH: false where one of them is unknown. A virtual machine keeps its machine-id when it is installed anew.
is_older() {
  [[ -n $1 && -n $2 ]] && (($(date -d "$1" +%s) < $2))
}

# replace_node NODE
replace_node() {
  poll "$NOT_READY_DEADLINE" fails node_is_ready "$1" ||
    die "Node $1 is Ready on another machine than the one that is configured" \
      "give the new machine another name; or remove K3s from the old one (docs/hosts.md, Replaced machines) and retry. The same machine with another machine-id: k3s kubectl annotate node $1 busbar/machine- here, and retry"
  note "Node $1 was on another machine, which is gone: deleting it, so that the new one can join"
  remove_node "$1"
}

# remove_node NODE: takes a server that is gone out of etcd, and deletes the Node.
remove_node() {
  leave_etcd "$1" || die "$1 is still a member of etcd after $MEMBER_DEADLINE s" "see: journalctl -u k3s; then retry"
  delete_node "$1" || die "deleting Node $1 failed" "run on a server: k3s kubectl delete node $1; then retry"
}

remove_gone() {
  local names node no_api="the Kubernetes API on this server is not responding" cluster=true
  if ! systemctl is-active --quiet k3s || is_torn_down; then
    cluster=false
  else
    names=$(configured_servers) || die "$no_api" "see: systemctl status k3s"
    if [[ -z $names ]]; then
      note "the cluster has no list of its configured servers (ConfigMap kube-system/$CONFIGURED); Node $NODE_NAME stays"
    elif grep -xF "$NODE_NAME" <<<"$names" >/dev/null; then
      note "the configuration contains server $NODE_NAME; its Node stays"
    else
      node=$(node_field "$NODE_NAME" '{.metadata.name}') || die "$no_api" "see: systemctl status k3s"
      [[ -z $node ]] || remove_node "$NODE_NAME"
    fi
  fi
  printf '{"node":%s,"cluster":%s}\n' "$(json "$NODE_NAME")" "$cluster"
}

main
