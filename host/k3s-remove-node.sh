#!/usr/bin/env bash
# Says farewell to a worker, from a server: drains it and deletes its Node. VERB=remove is all it knows.
#
# Values: NODE_NAME (the worker). Runs again safely: a Node that is gone is no error.
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DRAIN_SECONDS=300
K3S=/usr/local/bin/k3s
KUBECONFIG_FILE=/etc/rancher/k3s/k3s.yaml

main() {
  begin
  [[ $VERB == remove ]] || die "VERB=$VERB is unknown" "use remove"
  local node
  node=$(kubectl 30 get node "$NODE_NAME" --ignore-not-found -o name) ||
    die "the API does not answer on this server" "look with: systemctl status k3s"
  if [[ -n $node ]]; then
    kubectl "$DRAIN_SECONDS" drain "$NODE_NAME" --ignore-daemonsets --delete-emptydir-data --force \
      --timeout="$((DRAIN_SECONDS - 20))s" >&2 ||
      note "not all pods left in $DRAIN_SECONDS s (a disruption budget, a dead host?); the Node is deleted all the same"
    # Also drops the Secret with the node's password, so that the name can be used again (k3s-io/k3s#10408).
    kubectl 60 delete node "$NODE_NAME" --ignore-not-found --timeout=45s >&2 ||
      die "Node $NODE_NAME could not be deleted" "run on a server: k3s kubectl delete node $NODE_NAME"
  fi
  printf '{"node":%s,"removed":true}\n' "$(json "$NODE_NAME")"
}

# kubectl SECONDS ARGUMENTS...
kubectl() {
  local seconds=$1
  shift
  timeout "$seconds" "$K3S" kubectl --kubeconfig "$KUBECONFIG_FILE" "$@"
}

main
