#!/usr/bin/env bash
# Drains and deletes the Nodes of workers that are not configured any more. Runs on a server, after the configured workers
# are installed and before those hosts are uninstalled. The only verb is VERB=install. Safe to run again.
#
# A Node counts if busbar has noted its machine (k3s_record_machine), and if it is no server.
#
# Payload: workers (lines "NODE": all of the configuration).
# Facts: {"node","deleted":[NODE...]}
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib k3s-api; do
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

DRAIN_SECONDS=300
# Each is a kubectl on this server.
AT_ONCE=10

main() {
  begin
  local nodes stale
  [[ $PAYLOAD == *'"workers":'* ]] || die "no list of the configured workers: every Node would count as stale" "send workers"
  nodes=$(cluster_nodes) || die "the Kubernetes API on this server does not answer" "see: systemctl status k3s"
  stale=$(stale_nodes "$nodes" "$(payload workers)")
  # shellcheck disable=SC2086 # a list of names
  [[ -z $stale ]] || remove_nodes "$nodes" $stale
  printf '{"node":%s,"deleted":[%s]}\n' "$(json "$NODE_NAME")" "$(json_list "$stale")"
}

# stale_nodes NODES WORKERS: K3s writes names of Nodes in lower case.
stale_nodes() {
  awk -F'|' '
    input == "workers" { configured[tolower($1)] = 1 }
    input == "nodes" && $2 != "" && $3 != "true" && !(tolower($1) in configured) { print $1 }
  ' input=workers <(echo "$2") input=nodes <(echo "$1")
}

# remove_nodes NODES STALE...: a few at the same time; those that remain are named at the end.
remove_nodes() {
  local nodes=$1 node remaining=""
  local -A running
  shift
  while (($#)); do
    running=()
    for node in "${@:1:AT_ONCE}"; do
      remove_node "$node" "$nodes" &
      running[$node]=$!
    done
    for node in "${!running[@]}"; do
      wait "${running[$node]}" || remaining+=" $node"
    done
    shift "${#running[@]}"
  done
  [[ -z $remaining ]] || die "these Nodes could not be deleted:$remaining" "see the log above; fix the cause and retry"
}

# remove_node NODE NODES: nothing runs on a Node whose machine has another name now, or is gone.
remove_node() {
  if is_renamed "$1" "$2"; then
    note "the machine of Node $1 is another Node now; nothing to drain"
  elif node_is_not_ready "$1"; then
    note "Node $1 is not Ready: nothing there can be drained; its pods start again elsewhere"
  else
    drain "$1"
  fi
  delete_node "$1" || die "deleting Node $1 failed" "run on a server: k3s kubectl delete node $1"
}

# is_renamed NODE NODES: whether another Node has the same machine.
is_renamed() {
  awk -F'|' -v node="$1" '{ machine[$1] = $2; count[$2]++ } END { exit !(count[machine[node]] > 1) }' <<<"$2"
}

drain() {
  note "$1 is not configured any more: its Node is drained and deleted"
  api "$DRAIN_SECONDS" drain "$1" --ignore-daemonsets --delete-emptydir-data --force \
    --timeout="$((DRAIN_SECONDS - 20))s" >&2 ||
    note "drain of $1 timed out after $DRAIN_SECONDS s (a disruption budget?); deleting the Node anyway"
}

# json_list LINES: as the elements of a list.
json_list() {
  local line text=""
  while read -r line; do
    [[ -z $line ]] || text+="${text:+,}$(json "$line")"
  done <<<"$1"
  printf '%s' "$text"
}

main
