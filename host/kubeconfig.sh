#!/usr/bin/env bash
# Prints the admin's kubeconfig of this server (YAML, secret): the one script whose output is no JSON.
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

KUBECONFIG_FILE=/etc/rancher/k3s/k3s.yaml

main() {
  begin
  poll 30 test -s "$KUBECONFIG_FILE" ||
    die "$KUBECONFIG_FILE is not there" "is K3s running? systemctl status k3s"
  cat "$KUBECONFIG_FILE"
}

main
