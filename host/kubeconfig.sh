#!/usr/bin/env bash
# Prints the admin's kubeconfig of this server, which is secret: {"kubeconfig"}
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

KUBECONFIG_FILE=/etc/rancher/k3s/k3s.yaml

main() {
  begin
  poll 30 test -s "$KUBECONFIG_FILE" ||
    die "$KUBECONFIG_FILE does not exist" "check that K3s runs: systemctl status k3s"
  printf '{"kubeconfig":%s}\n' "$(json "$(<"$KUBECONFIG_FILE")")"
}

main
