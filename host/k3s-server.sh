#!/usr/bin/env bash
# A K3s server with embedded etcd. VERB=install: installed, Ready and a voter in etcd. VERB=remove: removed.
#
# Values: NODE_NAME, NODE_ADDRESS, VERSION, URL_AMD64, SHA256_AMD64 (or ARM64), IMAGES (lines "sha256 url"),
#   FIRST (true on server 1), PEERS (addresses; server 1: the other servers, others: server 1).
# Payload: config (config.yaml without cluster-init, server, node-ip, flannel-iface), registries (registries.yaml, may be empty).
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
  acquire_lock
  case $VERB in
    install) install_server ;;
    remove) remove_server ;;
    *) die "VERB=$VERB is unknown" "use install or remove" ;;
  esac
}

install_server() {
  local membership address
  k3s_refuse_other_role k3s-agent
  address=$(k3s_node_address)
  record_preexisting_files
  k3s_download
  membership=$(membership_line)
  k3s_install_binary
  auth_config
  k3s_config "$membership" "$address"
  k3s_unit "$UNIT" server
  k3s_memlock "$UNIT"
  k3s_sysctl
  k3s_start "$UNIT"
  await_member
  renew_certificate
  record_applied_hash "$UNIT"
  facts
}

await_member() {
  k3s_await "$UNIT" "$(k3s_ready_seconds "$READY_DEADLINE")" "Node $NODE_NAME Ready and a voter in etcd" \
    k3s_node_has "$KUBECONFIG_FILE" Ready=True EtcdIsVoter=True
}

# renew_certificate: an address added to tls-san later (a second load balancer) is missing from the existing
# certificate (k3s-io/docs cli/certificate.md).
renew_certificate() {
  local missing
  missing=$(missing_names)
  [[ -n $missing ]] || return 0
  note "the certificate of the API lacks $missing: renewing it"
  timeout 90 systemctl stop "$UNIT" || die "$UNIT did not stop" "see: systemctl status $UNIT"
  "$K3S" certificate rotate >&2 || note "k3s certificate rotate failed"
  systemctl --no-block start "$UNIT"
  await_member
  missing=$(missing_names)
  [[ -z $missing ]] ||
    die "the certificate of the API still lacks $missing" "see: k3s certificate check; journalctl -u $UNIT"
}

# missing_names: the names of tls-san that are not in the certificate on port 6443, separated by spaces.
missing_names() {
  local name status
  while read -r name; do
    status=0
    curl -s -o /dev/null --max-time 6 --cacert "$K3S_DATA_DIR/server/tls/server-ca.crt" \
      --connect-to "::127.0.0.1:6443" "https://$(bracketed "$name"):6443/ping" || status=$?
    # 60: the certificate does not match.
    ((status != 60)) || printf '%s ' "$name"
  done < <(k3s_config_list tls-san)
}

# membership_line: how this server joins the cluster; without effect once its etcd has data.
membership_line() {
  local peer written
  written=$(grep -E '^(cluster-init|server):' "$K3S_CONFIG_DIR/config.yaml" 2>/dev/null || true)
  if [[ -d $K3S_DATA_DIR/server/db/etcd && -n $written ]]; then
    printf '%s' "$written"
    return
  fi
  if [[ $FIRST == true ]]; then
    # If its machine was replaced, server 1 joins the running servers: a second cluster-init would make a
    # second cluster.
    for peer in $PEERS; do
      if peer_reachable "$peer"; then
        printf 'server: "https://%s:6443"' "$(bracketed "$peer")"
        return
      fi
    done
    printf 'cluster-init: true'
    return
  fi
  peer=${PEERS%% *}
  poll "$PEER_DEADLINE" peer_reachable "$peer" ||
    die "server 1 ($peer:6443) is not reachable from here after $PEER_DEADLINE s" \
      "open TCP 6443, 2379 and 2380 between the servers, and check server 1: systemctl status k3s"
  printf 'server: "https://%s:6443"' "$(bracketed "$peer")"
}

# Before it has joined, a server has no CA to check: /ping shows only that a K3s runs there.
peer_reachable() {
  [[ $(curl -sk --connect-timeout 3 --max-time 6 "https://$(bracketed "$1"):6443/ping" 2>/dev/null) == pong ]]
}

bracketed() {
  if [[ $1 == *:* ]]; then printf '[%s]' "$1"; else printf '%s' "$1"; fi
}

# Allows anonymous requests to /livez and /readyz only, for the load balancer's check (k3s-io/k3s#12277).
auth_config() {
  write_file "$K3S_CONFIG_DIR/auth-config.yaml" 0600 <<'EOF'
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
  # The token contains the hash that K3s pins.
  hash=$(sed -n 's/^K10\([0-9a-f]\{64\}\)::.*/\1/p' "$K3S_DATA_DIR/server/token")
  [[ -n $hash ]] || die "$K3S_DATA_DIR/server/token is not a secure token" "see: journalctl -u k3s"
  printf '{"node":%s,"version":%s,"ca_sha256":%s,"ca_pem":%s}\n' "$(json "$NODE_NAME")" \
    "$(json "$(k3s_version)")" "$(json "$hash")" "$(json "$(<"$ca")")"
}

# remove_server: leaves etcd if other servers remain, then removes K3s.
remove_server() {
  if systemctl is-active --quiet "$UNIT" && [[ $(etcd_members) -gt 1 ]]; then
    # Deleting the Node also removes the etcd member (k3s-io/k3s pkg/etcd/member_controller.go), which ends
    # the API on this server.
    timeout 30 "$K3S" kubectl --kubeconfig "$KUBECONFIG_FILE" delete node "$NODE_NAME" --wait=false >&2 ||
      note "deleting the Node failed; if the cluster remains, run on another server: k3s kubectl delete node $NODE_NAME"
    poll 30 node_is_gone || note "the Node still exists after 30 s; check on another server: k3s kubectl get nodes"
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
