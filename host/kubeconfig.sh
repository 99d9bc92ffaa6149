#!/usr/bin/env bash
# Prints the administrator's kubeconfig. K3s issues its certificates for 365 days and renews those with less than
# 120 days left when it starts (k3s-io/k3s, docs/cli/certificate.md): near the end this server is restarted first.
#
# Values: NODE_NAME, RENEWAL (a number that changes with time, so that an update runs this again before the end).
# Facts, secret: {"kubeconfig"}
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib k3s-etcd

# Below K3s's own 120 days.
MIN_VALID_DAYS=110
RENEWAL_DEADLINE=300

main() {
  begin
  poll 30 test -s "$KUBECONFIG_FILE" ||
    die "$KUBECONFIG_FILE does not exist" "check that K3s is running: systemctl status k3s"
  if ends_soon; then
    acquire_lock
    # The step that held the lock may have restarted K3s.
    ! ends_soon || renew
  fi
  printf '{"kubeconfig":%s}\n' "$(json "$(<"$KUBECONFIG_FILE")")"
}

# ends_soon: whether the client certificate in the file is known to end within MIN_VALID_DAYS.
ends_soon() {
  local certificate
  certificate=$(sed -n 's/^ *client-certificate-data: *//p' "$KUBECONFIG_FILE" | base64 -d)
  openssl x509 -noout <<<"$certificate" 2>/dev/null || {
    note "the client certificate in $KUBECONFIG_FILE cannot be read (is openssl installed?); its expiry is unknown"
    return 1
  }
  ! openssl x509 -noout -checkend "$((MIN_VALID_DAYS * 86400))" <<<"$certificate" >/dev/null
}

renew() {
  note "the certificates of K3s have less than $MIN_VALID_DAYS days left: restarting k3s, which renews them"
  keep_quorum
  systemctl --no-block restart k3s
  poll "$RENEWAL_DEADLINE" fails ends_soon ||
    die "K3s did not renew its certificates within $RENEWAL_DEADLINE s" "see: k3s certificate check; journalctl -u k3s"
  poll "$RENEWAL_DEADLINE" server_answers 127.0.0.1 ||
    die "the Kubernetes API on this server is not responding after the restart" "see: journalctl -u k3s"
}

main
