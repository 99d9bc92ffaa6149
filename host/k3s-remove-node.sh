#!/usr/bin/env bash
# Drains and deletes a node; runs on a server. The only verb is VERB=remove.
#
# Values: NODE_NAME (the worker). Safe to run again: a Node that does not exist is not an error. A Node of a worker
# that the configuration contains (list of k3s-nodes.sh) is left alone; so is every Node without such a list.
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib k3s-api owner; do
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

DRAIN_SECONDS=300

main() {
  begin
  [[ $VERB == remove ]] || die "VERB=$VERB is unknown" "use remove"
  if [[ ! -s $STATE_DIR/workers ]]; then
    note "this server has no list of the configured workers ($STATE_DIR/workers); Node $NODE_NAME stays"
    removed false
    return
  fi
  if grep -xF "$NODE_NAME" "$STATE_DIR/workers" >/dev/null; then
    note "the configuration contains worker $NODE_NAME; its Node stays"
    removed false
    return
  fi
  local node
  node=$(node_field "$NODE_NAME" '{.metadata.name}') ||
    die "the Kubernetes API on this server does not answer" "see: systemctl status k3s"
  if [[ -n $node ]]; then
    drain
    delete_node "$NODE_NAME" ||
      die "deleting Node $NODE_NAME failed" "run on a server: k3s kubectl delete node $NODE_NAME"
  fi
  removed true
}

# drain: nothing runs on a Node whose machine has another name now.
drain() {
  local machine
  machine=$(node_field "$NODE_NAME" '{.metadata.annotations.busbar/machine}')
  if [[ -n $machine && $(nodes_of_machine "$machine") -gt 1 ]]; then
    note "the machine of Node $NODE_NAME is another Node now; nothing to drain"
    return
  fi
  api "$DRAIN_SECONDS" drain "$NODE_NAME" --ignore-daemonsets --delete-emptydir-data --force \
    --timeout="$((DRAIN_SECONDS - 20))s" >&2 ||
    note "drain timed out after $DRAIN_SECONDS s (a disruption budget, a dead host?); deleting the Node anyway"
}

nodes_of_machine() {
  api 30 get nodes -o 'jsonpath={range .items[*]}{.metadata.annotations.busbar/machine}{"\n"}{end}' |
    awk -v machine="$1" '$1 == machine { count++ } END { print count + 0 }'
}

main
