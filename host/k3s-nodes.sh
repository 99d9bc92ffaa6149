#!/usr/bin/env bash
# Prepares the cluster for the hosts of the configuration; runs on a server, before they join. Safe to run again.
#
# K3s refuses a machine that joins under the name of another one (its password, its etcd member). So the Node of a
# machine that was replaced is deleted first: only if preflight found another machine behind the name (machine-id)
# than the Node was made on, and only if that Node is not Ready.
#
# A server that is not configured any more and not Ready leaves etcd first: with it as a member, the next one to stop
# would cost the quorum.
#
# Values: NODE_NAME; AFTER (true: this step runs after the installation of this server, else also before K3s is here).
# Payload: machines (lines "NODE MACHINE"), servers (lines "NODE": all of the configuration. They are noted in the
#   cluster; none of them leaves etcd when only its resource is removed), taints (lines "NODE KEY=VALUE:EFFECT...": the
#   taints of every worker; empty: taints are left as they are).
# Facts: {"node","replaced":[NODE...]}
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib lib-install k3s-api; do
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

# The Node of a machine that is off becomes NotReady after 40 to 50 s.
NOT_READY_DEADLINE=120
START_DEADLINE=60
ETCD_DATA=/var/lib/rancher/k3s/server/db/etcd
# Where earlier releases of busbar noted which agents restarted.
FORMER_NAMESPACE=busbar-rollout

main() {
  begin
  REPLACED=""
  [[ ${AFTER:-} != true ]] || poll "$START_DEADLINE" systemctl is-active --quiet k3s ||
    die "K3s does not run here, so the cluster does not know its configured hosts" "see: journalctl -u k3s; then retry"
  # Without it a new machine as server 1 would find no cluster to join, and begin a second one.
  [[ ! -d $ETCD_DATA ]] || poll "$START_DEADLINE" systemctl is-active --quiet k3s ||
    die "K3s is installed here and does not run, so server 1 cannot join its cluster" \
      "systemctl start k3s; if it fails, see: journalctl -u k3s; then retry"
  if systemctl is-active --quiet k3s; then
    local nodes
    nodes=$(cluster_nodes) || die "the Kubernetes API on this server does not answer" "see: systemctl status k3s"
    remove_lost_servers "$nodes"
    replace_nodes "$nodes"
    apply_taints
    [[ ${AFTER:-} != true ]] || note_hosts
  fi
  printf '{"node":%s,"replaced":[%s]}\n' "$(json "$NODE_NAME")" "$REPLACED"
}

# note_hosts: the names of the configured servers.
note_hosts() {
  api 30 apply -f - >&2 <<EOF || die "noting the hosts in the cluster failed" "see the log above; then retry"
apiVersion: v1
kind: ConfigMap
metadata: {name: $CONFIGURED, namespace: kube-system}
data:
  servers: |-
$(payload servers | sed 's/^/    /')
EOF
  api 30 delete namespace "$FORMER_NAMESPACE" --ignore-not-found --wait=false >&2 ||
    die "deleting namespace $FORMER_NAMESPACE failed" "see the log above; then retry"
}

# remove_lost_servers NODES
remove_lost_servers() {
  local names node etcd
  names=$(payload servers)
  [[ -n $names ]] || return 0
  while IFS='|' read -r node _ etcd; do
    if [[ $etcd != true ]] || grep -xF "$node" <<<"$names" >/dev/null || node_is_ready "$node"; then continue; fi
    note "server $node is not configured any more, and not Ready: it leaves etcd before anything else changes"
    leave_etcd "$node" ||
      die "$node is still a member of etcd after $MEMBER_DEADLINE s" "see: journalctl -u k3s; then retry"
    delete_node "$node" || die "deleting Node $node failed" "run on a server: k3s kubectl delete node $node"
  done <<<"$1"
}

# replace_nodes NODES
replace_nodes() {
  local node machine before
  while read -r node machine; do
    before=$(awk -F'|' -v node="$node" '$1 == node { print $2 }' <<<"$1")
    [[ -n $before && -n $machine && $before != "$machine" ]] || continue
    replace_node "$node"
    REPLACED+="${REPLACED:+,}$(json "$node")"
  done <<<"$(payload machines)"
}

# replace_node NODE
replace_node() {
  poll "$NOT_READY_DEADLINE" node_is_not_ready "$1" ||
    die "Node $1 is Ready on another machine than the one that is configured" \
      "give the new machine another name; or remove K3s from the old one (docs/hosts.md, Replaced machines) and retry"
  note "Node $1 was on another machine, which is gone: deleting it, so that the new one can join"
  leave_etcd "$1" ||
    die "$1 is still a member of etcd after $MEMBER_DEADLINE s" "see: journalctl -u k3s; then retry"
  delete_node "$1" || die "deleting Node $1 failed" "run on a server: k3s kubectl delete node $1"
}

# apply_taints: changed taints arrive at Nodes that have joined; K3s sets them only when a Node registers. Taints that
# were configured and are not any more are removed, those of anybody else stay.
apply_taints() {
  local wanted record=$STATE_DIR/taints changes change nodes
  wanted=$(payload taints)
  [[ -n $wanted && -d $STATE_DIR ]] || return 0
  changes=$(taint_changes "$(cat "$record" 2>/dev/null || true)" "$wanted")
  while IFS='|' read -r change nodes; do
    [[ -n $change ]] || continue
    note "taints of$nodes:$change"
    # shellcheck disable=SC2086 # lists of words
    api 120 taint nodes $nodes $change --overwrite >&2 ||
      die "setting the taints of$nodes failed:$change" "see the log above; fix the cause and retry"
  done <<<"$changes"
  printf '%s\n' "$wanted" | write_file "$record" 0600
}

# taint_changes BEFORE WANTED: lines " CHANGE...| NODE..." for kubectl taint, one per distinct change. Each input is
# lines "NODE KEY=VALUE:EFFECT..."; key and effect identify a taint.
taint_changes() {
  local found
  found=$(api 30 get nodes -o 'jsonpath={range .items[*]}{.metadata.name}{range .spec.taints[*]} {.key}={.value}:{.effect}{end}{"\n"}{end}') ||
    die "the Kubernetes API on this server does not answer" "see: systemctl status k3s"
  awk '
    function identity(taint) { sub(/=[^:]*:/, ":", taint); return taint }
    input == "before" { for (i = 2; i <= NF; i++) before[$1] = before[$1] " " $i }
    input == "wanted" { wanted[$1] = $0; for (i = 2; i <= NF; i++) is_wanted[$1, identity($i)] = 1 }
    input == "found" && $1 in wanted {
      change = ""
      delete has
      for (i = 2; i <= NF; i++) { has[$i] = 1; has[identity($i)] = 1 }
      count = split(wanted[$1], list, " ")
      for (i = 2; i <= count; i++) if (!(list[i] in has)) change = change " " list[i]
      count = split(before[$1], list, " ")
      for (i = 1; i <= count; i++)
        if (!(($1, identity(list[i])) in is_wanted) && identity(list[i]) in has)
          change = change " " identity(list[i]) "-"
      if (change != "") nodes[change] = nodes[change] " " $1
    }
    END { for (change in nodes) print change "|" nodes[change] }
  ' input=before <(echo "$1") input=wanted <(echo "$2") input=found <(echo "$found") | sort
}

main
