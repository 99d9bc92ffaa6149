#!/usr/bin/env bash
# A K3s server with embedded etcd. VERB=install: installed, Ready and a voter in etcd. VERB=remove: gone.
#
# Values: NODE_NAME, NODE_ADDRESS, VERSION, URL_AMD64, SHA256_AMD64 (or ARM64), IMAGES (lines "sha256 url"),
#   FIRST (true on server 1), PEERS (addresses; server 1: the other servers, others: server 1).
# Payload: config (config.yaml without cluster-init, server, node-ip), registries (registries.yaml or nothing).
# Facts: {"node","version","ca_sha256","ca_pem"}
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib lib-install k3s-lib k3s-remove; do
  # shellcheck source=/dev/null
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

UNIT=k3s
READY_DEADLINE=420
PEER_DEADLINE=60
KUBECONFIG_FILE=/etc/rancher/k3s/k3s.yaml

main() {
  begin
  one_at_a_time
  case $VERB in
    install) install_server ;;
    remove) remove_server ;;
    *) die "VERB=$VERB is unknown" "use install or remove" ;;
  esac
}

install_server() {
  local membership
  k3s_refuse_other_role k3s-agent
  k3s_remember
  k3s_download
  membership=$(membership_line)
  k3s_install_binary
  auth_config
  k3s_config "$membership" "$(k3s_node_ip)"
  k3s_unit "$UNIT" server
  k3s_memlock "$UNIT"
  k3s_sysctl
  k3s_start "$UNIT"
  await_member
  renew_certificate
  k3s_settled "$UNIT"
  facts
}

await_member() {
  k3s_await "$UNIT" "$READY_DEADLINE" "Node $NODE_NAME Ready and a voter in etcd" \
    k3s_node_has "$KUBECONFIG_FILE" Ready=True EtcdIsVoter=True
}

# renew_certificate: an address that came into tls-san later (a second load balancer) is not in the certificate
# that K3s has already made (k3s-io/docs cli/certificate.md).
renew_certificate() {
  local missing
  missing=$(missing_names)
  [[ -n $missing ]] || return 0
  note "the API's certificate lacks $missing: it is renewed"
  timeout 90 systemctl stop "$UNIT" || die "$UNIT does not stop" "look with: systemctl status $UNIT"
  "$K3S" certificate rotate >&2 || note "k3s certificate rotate failed"
  systemctl --no-block start "$UNIT"
  await_member
  missing=$(missing_names)
  [[ -z $missing ]] ||
    die "the API's certificate still lacks $missing" "look with: k3s certificate check; journalctl -u $UNIT"
}

# missing_names: those of tls-san that the certificate on 6443 does not carry, separated by spaces.
missing_names() {
  local name status
  while read -r name; do
    status=0
    curl -s -o /dev/null --max-time 6 --cacert "$K3S_DATA_DIR/server/tls/server-ca.crt" \
      --connect-to "::127.0.0.1:6443" "https://$(bracketed "$name"):6443/ping" || status=$?
    # 60: the peer's certificate does not fit.
    ((status != 60)) || printf '%s ' "$name"
  done < <(k3s_config_list tls-san)
}

# membership_line: how this server comes into the cluster; without effect once its etcd has data.
membership_line() {
  local peer written
  written=$(grep -E '^(cluster-init|server):' "$K3S_CONFIG_DIR/config.yaml" 2>/dev/null || true)
  if [[ -d $K3S_DATA_DIR/server/db/etcd && -n $written ]]; then
    printf '%s' "$written"
    return
  fi
  if [[ $FIRST == true ]]; then
    # A new server 1 beside living others (its machine was replaced) joins them: a second cluster-init would
    # split the cluster in two.
    for peer in $PEERS; do
      if peer_lives "$peer"; then
        printf 'server: "https://%s:6443"' "$(bracketed "$peer")"
        return
      fi
    done
    printf 'cluster-init: true'
    return
  fi
  peer=${PEERS%% *}
  poll "$PEER_DEADLINE" peer_lives "$peer" ||
    die "server 1 ($peer:6443) does not answer from here" \
      "open TCP 6443, 2379 and 2380 between the servers, and look at server 1: systemctl status k3s"
  printf 'server: "https://%s:6443"' "$(bracketed "$peer")"
}

# Before it has joined, a server knows no CA; /ping tells only that there is a K3s, the token proves which.
peer_lives() {
  [[ $(curl -sk --connect-timeout 3 --max-time 6 "https://$(bracketed "$1"):6443/ping" 2>/dev/null) == pong ]]
}

bracketed() {
  if [[ $1 == *:* ]]; then printf '[%s]' "$1"; else printf '%s' "$1"; fi
}

# Opens exactly /livez and /readyz to whoever asks, for the load balancer's check (k3s-io/k3s#12277).
auth_config() {
  place "$K3S_CONFIG_DIR/auth-config.yaml" 0600 <<'EOF'
apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
    - path: /livez
    - path: /readyz
EOF
}

facts() {
  local ca=$K3S_DATA_DIR/server/tls/server-ca.crt hash
  # The token's own form says which hash K3s pins.
  hash=$(sed -n 's/^K10\([0-9a-f]\{64\}\)::.*/\1/p' "$K3S_DATA_DIR/server/token")
  [[ -n $hash ]] || die "$K3S_DATA_DIR/server/token is no secure token" "look at K3s's log: journalctl -u k3s"
  printf '{"node":%s,"version":%s,"ca_sha256":%s,"ca_pem":%s}\n' "$(json "$NODE_NAME")" \
    "$(json "$(k3s_version)")" "$(json "$hash")" "$(json "$(<"$ca")")"
}

# remove_server: leaves etcd in order where others stay, then takes everything of K3s away.
remove_server() {
  if systemctl is-active --quiet "$UNIT" && [[ $(etcd_members) -gt 1 ]]; then
    # Deleting the Node also removes the member (k3s-io/k3s pkg/etcd/member_controller.go); with that this
    # server's own API ends.
    timeout 30 "$K3S" kubectl --kubeconfig "$KUBECONFIG_FILE" delete node "$NODE_NAME" --wait=false >&2 ||
      note "the Node could not be deleted; if the cluster stays, run on another server: k3s kubectl delete node $NODE_NAME"
    poll 30 node_is_gone || note "the Node was not gone after 30 s; look on another server: k3s kubectl get nodes"
  fi
  k3s_uninstall "$UNIT"
}

node_is_gone() {
  ! timeout 10 "$K3S" kubectl --kubeconfig "$KUBECONFIG_FILE" get node "$NODE_NAME" -o name >/dev/null 2>&1
}

etcd_members() {
  { timeout 15 "$K3S" kubectl --kubeconfig "$KUBECONFIG_FILE" get nodes \
    -l node-role.kubernetes.io/etcd=true -o name 2>/dev/null || true; } | wc -l
}

main
