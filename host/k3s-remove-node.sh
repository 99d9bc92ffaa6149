#!/usr/bin/env bash
# Drains and deletes a node; runs on a server. The only verb is VERB=remove.
#
# Values: NODE_NAME (the worker). Safe to run again: a Node that does not exist is not an error.
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
    die "the Kubernetes API on this server does not answer" "see: systemctl status k3s"
  if [[ -n $node ]]; then
    kubectl "$DRAIN_SECONDS" drain "$NODE_NAME" --ignore-daemonsets --delete-emptydir-data --force \
      --timeout="$((DRAIN_SECONDS - 20))s" >&2 ||
      note "drain timed out after $DRAIN_SECONDS s (a disruption budget, a dead host?); deleting the Node anyway"
    # Also deletes the Secret with the node's password, so that the name can be used again (k3s-io/k3s#10408).
    kubectl 60 delete node "$NODE_NAME" --ignore-not-found --timeout=45s >&2 ||
      die "deleting Node $NODE_NAME failed" "run on a server: k3s kubectl delete node $NODE_NAME"
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
