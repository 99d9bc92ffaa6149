#!/usr/bin/env bash
# Functions by which servers change Nodes, through the API of this server or of API_SERVER (https://ADDRESS:6443).

API_SERVER=""
MEMBER_DEADLINE=90
# The ConfigMap in kube-system with the names of the configured servers.
CONFIGURED=busbar-nodes
# On a server whose whole cluster is being removed (k3s-nodes.sh), until that or an installation, for an hour at most.
TEARDOWN=/run/busbar-teardown
TEARDOWN_MINUTES=60
# pkg/etcd/member_controller.go in k3s-io/k3s: the request to leave etcd, and its answer.
ETCD_REMOVE=etcd.k3s.cattle.io/remove
ETCD_REMOVED=etcd.k3s.cattle.io/removed-node-name

# api SECONDS ARGUMENTS...: kubectl with the rights of an administrator; never through a proxy of the site.
api() {
  local seconds=$1
  shift
  NO_PROXY="*" timeout "$seconds" "$K3S" kubectl --kubeconfig "$KUBECONFIG_FILE" ${API_SERVER:+--server "$API_SERVER"} "$@"
}

# ca_sha256: the hash of the cluster's CA, which K3s pins in its token; empty before there is one.
ca_sha256() {
  sed -n 's/^K10\([0-9a-f]\{64\}\)::.*/\1/p' "$K3S_DATA_DIR/server/token" 2>/dev/null || true
}

# node_field NODE JSONPATH: empty if the Node does not exist or lacks it; fails if the API is not responding.
node_field() {
  api 30 get node "$1" --ignore-not-found -o "jsonpath=$2"
}

# cluster_nodes: lines "NODE|MACHINE|ETCD|CREATED": the digest of its machine-id where busbar has noted it, true for servers.
cluster_nodes() {
  api 30 get nodes -o 'jsonpath={range .items[*]}{.metadata.name}|{.metadata.annotations.busbar/machine}|{.metadata.labels.node-role\.kubernetes\.io/etcd}|{.metadata.creationTimestamp}{"\n"}{end}'
}

# etcd_nodes: lines "NAME READY" of the servers.
etcd_nodes() {
  node_states 15 -l node-role.kubernetes.io/etcd=true 2>/dev/null
}

# node_states SECONDS ARGUMENTS...: lines "NAME READY" of Nodes.
node_states() {
  api "$1" get nodes "${@:2}" -o 'jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}'
}

# configured_servers: their names, as k3s-nodes.sh has noted them in the cluster.
configured_servers() {
  api 30 get configmap "$CONFIGURED" -n kube-system --ignore-not-found -o "jsonpath={.data.servers}"
}

# node_is_ready NODE: fails closed: without an answer the Node counts as ready.
node_is_ready() {
  local status
  status=$(node_field "$1" '{.status.conditions[?(@.type=="Ready")].status}') || return 0
  [[ $status == True ]]
}

# leave_etcd NODE: takes a server out of etcd; returns when the API confirms that it is no member any more.
leave_etcd() {
  local member
  member=$(node_field "$1" '{.metadata.labels.node-role\.kubernetes\.io/etcd}') || return 1
  [[ $member == true ]] || return 0
  api 30 annotate node "$1" "$ETCD_REMOVE=true" --overwrite >&2 || return 1
  poll "$MEMBER_DEADLINE" has_left_etcd "$1"
}

has_left_etcd() {
  [[ -n $(node_field "$1" "{.metadata.annotations.${ETCD_REMOVED//./\\.}}" || true) ]]
}

# is_removed: whether K3s has found that its member was removed, as with its Node (k3s-io/k3s pkg/etcd/etcd.go).
is_removed() {
  [[ -e $K3S_DATA_DIR/server/db/etcd/tombstone ]]
}

# is_torn_down: whether the whole cluster is being removed: then no server has to leave etcd.
is_torn_down() {
  [[ -n $(find "$TEARDOWN" -mmin "-$TEARDOWN_MINUTES" 2>/dev/null || true) ]]
}

# delete_node NODE: also its password, so that the name can be used again (k3s-io/k3s#10408). K3s leaves the Secret to
# the garbage collector; a machine that joins before that is refused.
delete_node() {
  api 60 delete node "$1" --ignore-not-found --timeout=45s >&2 || return 1
  api 60 -n kube-system delete secret "${1,,}.node-password.k3s" --ignore-not-found --timeout=45s >&2
}
