#!/usr/bin/env bash
# A K3s server with embedded etcd. VERB=install: installed, Ready and a voter in etcd. VERB=remove: removed.
#
# Values: OWNER, INSTALL_ID, NODE_NAME, NODE_ADDRESS, VERSION, URL_AMD64, SHA256_AMD64 (or ARM64), IMAGES (lines "sha256 url"),
#   FIRST (true on server 1), PEERS (addresses of the other servers, in their order), API_ADDRESS, ROTATE_* (k3s-rotation.sh),
#   VIRTUAL_IP (keepalived.sh; not set unless the servers share an address).
# Payload: config (config.yaml without cluster-init, server, node-ip, flannel-iface), registries (registries.yaml, may be empty),
#   peer_ca (on server 1: sha256 of the CA of the cluster that server 2 runs; empty for a new cluster),
#   first_values (JSON: what cannot be changed later, busbar/preflight/unchangeable.py),
#   jwt (the part of this name of an AuthenticationConfiguration; may be empty),
#   proxy (drop-in of the unit with the environment of a proxy; may be left out).
# Facts: {"node","version","ca_sha256","ca_pem"}
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner k3s-api k3s-lib k3s-etcd k3s-rotation k3s-remove packages keepalived

UNIT=k3s
FIRST_VALUES=$STATE_DIR/first-values
PEER_DEADLINE=60
# The API server looks for a new file once a minute at the latest, and gives its issuers a minute to answer.
ISSUERS_DEADLINE=150
SERVER_PORTS="open TCP 6443, 2379 and 2380 between the servers; see on that one: systemctl status k3s"
LEAVING=/run/systemd/system/k3s.service.d/90-busbar-leaving.conf

main() {
  begin_verb install remove
  acquire_lock
  "${VERB}_server"
}

install_server() {
  local membership address
  k3s_refuse_conflicts k3s-agent
  [[ ! -e $STATE_DIR/restoring ]] ||
    die "an earlier restore of etcd is not finished on this host; no changes made" "finish it: busbar restore STACK --snapshot NAME (busbar snapshots STACK lists them; of the bucket: --s3)"
  refuse_new_identity
  [[ -z ${VIRTUAL_IP:-} ]] || refuse_foreign_keepalived
  address=$(k3s_node_address)
  claim_host server
  # A removal that was interrupted has left them.
  rm -f "$TEARDOWN" "$LEAVING"
  record_preexisting_files
  k3s_download
  restart_after_drift
  membership=$(membership_line)
  if is_removed; then
    note "etcd has removed this server: K3s moves its data aside (server/db/etcd-old-*) and joins anew"
    stop_unit "$UNIT"
    rm -f "$STATE_DIR/$UNIT.sha256"
  fi
  pin_peer_ca "$membership"
  with_rotations apply_server "$membership" "$address"
  renew_certificate
  share_address
  k3s_record_machine
  record_applied_hash
  [[ -e $FIRST_VALUES ]] || ! controllers_work || note_first_values
  facts
}

# note_first_values: what the cluster is made with; of a cluster without the note, once it works.
note_first_values() {
  local values
  values=$(payload first_values)
  [[ -z $values ]] || write_file "$FIRST_VALUES" 0600 <<<"$values"
}

# controllers_work: whether a controller manager has renewed its Lease within a minute.
controllers_work() {
  local renewed
  renewed=$(api 30 -n kube-system get lease kube-controller-manager -o 'jsonpath={.spec.renewTime}' 2>/dev/null) || return 1
  (($(date +%s) - $(date -d "$renewed" +%s) < 60))
}

# apply_server LINE...: with lines of config.yaml that depend on this host.
apply_server() {
  snapshot_before_upgrade
  auth_config
  k3s_write_files server "$@"
  has_data || note_first_values
  k3s_start
  k3s_await_server
  if ! k3s_has_pod_network_of_node; then
    keep_quorum
    k3s_renew_pod_network
    k3s_await_server
  fi
}

# share_address: clients reach the API at the virtual IP, which one of the servers has whose own API is ready.
share_address() {
  if [[ -z ${VIRTUAL_IP:-} ]]; then
    remove_keepalived
    return
  fi
  install_package keepalived
  configure_keepalived
  poll "$VIRTUAL_IP_DEADLINE" server_answers "$(bracketed "$VIRTUAL_IP")" ||
    die "the virtual IP $VIRTUAL_IP is not responding after $VIRTUAL_IP_DEADLINE s" \
      "check hosts.virtual_ip.interface (ip link), journalctl -u keepalived, and that the servers reach each other by VRRP (protocol 112)"
}

# snapshot_before_upgrade: of etcd, before a running server gets another binary; `busbar` never deletes it.
snapshot_before_upgrade() {
  [[ -x $K3S && -d $K3S_DATA_DIR/server/db/etcd/member ]] && ! k3s_is_installed || return 0
  if ! systemctl is-active --quiet "$UNIT"; then
    note "$UNIT is not running: taking no snapshot of etcd before the upgrade to $VERSION"
    return 0
  fi
  k3s_subcommand 120 etcd-snapshot save --name "busbar-before-${VERSION//[^a-zA-Z0-9.-]/-}" ||
    die "the snapshot of etcd before the upgrade to $VERSION failed; no changes made" \
      "k3s etcd-snapshot save, on this server, prints why; the free space: df -h $K3S_DATA_DIR/server/db/snapshots"
}

# refuse_new_identity: a server with data keeps its name, which is its name in etcd, and its tokens, unless they are to be
# rotated: the data in etcd are encrypted with its own, and K3s would not save another one of agents (forget_passwords).
refuse_new_identity() {
  local name token
  has_data || return 0
  name=$(config_value node-name <"$K3S_CONFIG_DIR/config.yaml")
  [[ -z $name || $name == "$NODE_NAME" ]] ||
    die "this server is $name in etcd and cannot become $NODE_NAME; no changes made" \
      "keep the name $name in hosts.servers, or rename servers one at a time: docs/hosts.md, Renaming and moving"
  token=$(config_value token <"$K3S_CONFIG_DIR/config.yaml")
  [[ -z $token || $(password_of "$token") == "$(password_of "$(next_token)")" ]] || rotation_is_due server_token ||
    die "the token is not the one that this cluster was created with; no changes made" \
      "bring back the state with the token in $K3S_CONFIG_DIR/config.yaml of this server: docs/sites.md, A lost state file"
  token=$(config_value agent-token <"$K3S_CONFIG_DIR/config.yaml")
  [[ -z $token || $token == "$(desired_value agent-token)" ]] || tokens_are_due ||
    die "the agent token is not the one of this cluster; no changes made" \
      "bring back the state with the agent-token in $K3S_CONFIG_DIR/config.yaml: docs/sites.md, A lost state file; or raise k3s.rotate.agent_token"
}

# renew_certificate: the existing one lacks what was added to tls-san since (k3s-io/docs cli/certificate.md).
renew_certificate() {
  local missing
  missing=$(missing_names)
  [[ -n $missing ]] || return 0
  note "the certificate of the API lacks $missing: renewing it"
  rotate_certificates_at_start
  k3s_start
  k3s_await_server
  certificates_are_rotated
  missing=$(missing_names)
  [[ -z $missing ]] ||
    die "the certificate of the API still lacks $missing" "see: k3s certificate check; journalctl -u $UNIT"
}

# missing_names: the names of tls-san that are not in the certificate on port 6443, separated by spaces.
missing_names() {
  local name status
  while read -r name; do
    status=0
    curl -s --noproxy '*' -o /dev/null --max-time 6 --cacert "$K3S_DATA_DIR/server/tls/server-ca.crt" \
      --connect-to "::127.0.0.1:6443" "https://$(bracketed "$name"):6443/ping" || status=$?
    # 60: the certificate does not match.
    ((status != 60)) || printf '%s ' "$name"
  done < <(desired_value tls-san)
}

# membership_line: how this server joins the cluster; without effect once its etcd has data.
membership_line() {
  local peer written
  if is_removed; then
    # A ready API server has an etcd with quorum. Without `server` K3s does not start again.
    for peer in $PEERS; do
      if server_answers "$(bracketed "$peer")"; then
        printf 'server: "https://%s:6443"' "$(bracketed "$peer")"
        return
      fi
    done
    die "etcd has removed this server, and no other server is ready (${PEERS:-none known}); no changes made" \
      "start K3s on the others (journalctl -u k3s), then busbar up STACK --converge $NODE_NAME"
  fi
  written=$(grep -E '^(cluster-init|server):' "$K3S_CONFIG_DIR/config.yaml" 2>/dev/null || true)
  if [[ -d $K3S_DATA_DIR/server/db/etcd && -n $written ]]; then
    printf '%s' "$written"
    return
  fi
  if [[ $FIRST == true ]]; then
    # If its machine was replaced, server 1 joins the running servers, and makes no second cluster.
    for peer in $PEERS; do
      if peer_reachable "$peer"; then
        printf 'server: "https://%s:6443"' "$(bracketed "$peer")"
        return
      fi
    done
    for peer in $PEERS; do
      poll "$PEER_DEADLINE" nothing_listens "$peer" ||
        die "$peer:6443 neither answers nor refuses: it may run the cluster to join" "$SERVER_PORTS"
    done
    ! peer_reachable "$API_ADDRESS" ||
      die "a cluster answers at $API_ADDRESS:6443, and this server would begin another one" \
        "keep one of its servers until others have joined it (docs/operations.md, All servers on other machines); if it is foreign, let that address lead here"
    printf 'cluster-init: true'
    return
  fi
  peer=${PEERS%% *}
  poll "$PEER_DEADLINE" peer_reachable "$peer" ||
    die "server 1 ($peer:6443) is not reachable from here after $PEER_DEADLINE s" "$SERVER_PORTS"
  printf 'server: "https://%s:6443"' "$(bracketed "$peer")"
}

# pin_peer_ca LINE: server 1, which makes the CA, has a token without it. When its machine was replaced, it joins with one that
# pins the CA, as the others do: else it would tell its token to whoever answers.
pin_peer_ca() {
  local token written ca config pinned
  token=$(next_token)
  [[ $FIRST == true && $1 == server:* && $token != K10* ]] || return 0
  if has_data; then
    written=$(config_value token <"$K3S_CONFIG_DIR/config.yaml")
    # One that joined without it does not restart for it.
    [[ $written == K10* ]] || return 0
    ca=${written#K10} ca=${ca%%::*}
  else
    ca=$(payload peer_ca)
  fi
  [[ $ca =~ ^[0-9a-f]{64}$ ]] ||
    die "the CA of the running cluster is not known, so this server does not join it" \
      "busbar up STACK --converge $NODE_NAME, which asks server 2 for it"
  config=$(payload config)
  pinned=${config/"token: $token"/"token: K10$ca::server:$token"}
  [[ $pinned != "$config" ]] || die "config.yaml has no line 'token: ...' of the expected form" "see config.yaml of another server"
  PAYLOAD=${PAYLOAD/"\"config\":\"$(payload config | base64 -w 0)\""/"\"config\":\"$(base64 -w 0 <<<"$pinned")\""}
}

# Before it has joined, a server has no CA to check: /ping shows only that a K3s runs there.
peer_reachable() {
  [[ $(peer_ping "$1") == pong ]]
}

# 7: refused, or no route.
nothing_listens() {
  local status=0
  peer_ping "$1" >/dev/null || status=$?
  ((status == 7))
}

peer_ping() {
  curl -sk --noproxy '*' --connect-timeout 3 --max-time 6 "https://$(bracketed "$1"):6443/ping"
}

bracketed() {
  if [[ $1 == *:* ]]; then printf '[%s]' "$1"; else printf '%s' "$1"; fi
}

# auth_config: anonymous requests to /livez and /readyz only, for the load balancer's check (k3s-io/k3s#12277), and the
# site's issuers of tokens. A running API server loads these by itself. What it has is kept until it has the new ones:
# with issuers that it refuses K3s would not start again.
auth_config() {
  local loaded=$STATE_DIR/auth-config.loaded
  [[ -e $loaded ]] || ! systemctl is-active --quiet "$UNIT" || ! only_issuers_change || write_file "$loaded" 0600 <"$K3S_AUTH_CONFIG"
  desired_auth_config | write_file "$K3S_AUTH_CONFIG" 0600
  [[ ! -e $loaded ]] || await_issuers "$loaded"
  rm -f "$loaded"
}

desired_auth_config() {
  cat <<'EOF'
apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
    - path: /livez
    - path: /readyz
EOF
  payload jwt
}

# only_issuers_change: anything else in that file needs a restart.
only_issuers_change() {
  [[ -e $K3S_AUTH_CONFIG ]] && ! desired_auth_config | cmp -s - "$K3S_AUTH_CONFIG" &&
    desired_auth_config | k3s_without_jwt | cmp -s - <(k3s_without_jwt <"$K3S_AUTH_CONFIG")
}

# await_issuers LOADED: until the API server has loaded them; else the file is again what it has.
await_issuers() {
  local hash why
  # shellcheck disable=SC2034 # read by k3s_log
  K3S_SINCE=$(date +%s)
  if [[ -z $(loaded_auth_config) ]]; then
    note "the API server does not tell which AuthenticationConfiguration it has: restarting $UNIT"
    rm -f "$STATE_DIR/$UNIT.sha256"
    return 0
  fi
  hash=$(sha256_of "$K3S_AUTH_CONFIG")
  if poll "$ISSUERS_DEADLINE" has_decided "$hash" && [[ $(loaded_auth_config) == "$hash" ]]; then return 0; fi
  why=$(issuers_error)
  write_file "$K3S_AUTH_CONFIG" 0600 <"$1"
  rm -f "$1"
  die "the API server has not loaded k3s.authentication.jwt, and keeps what it had: ${why:-timed out after $ISSUERS_DEADLINE s; see journalctl -u $UNIT}" \
    "correct it; this host must reach each issuer at its URL/.well-known/openid-configuration"
}

# has_decided HASH: it has loaded the file, or never will: only an issuer that is not responding is asked again
# (kubernetes pkg/kubeapiserver/options/authentication.go).
has_decided() {
  [[ $(loaded_auth_config) == "$1" ]] || [[ $(issuers_error) == "failed to "@(load|validate)* ]]
}

issuers_error() {
  k3s_log 2000 | grep -o 'failed to [a-z]* authentication config.*' | tail -n 1 | cut -c1-1000 || true
}

# loaded_auth_config: the sha256 of the file that the API server has loaded; nothing before Kubernetes 1.34 (k8s.io/apiserver
# pkg/server/options/authenticationconfig/metrics).
loaded_auth_config() {
  api 30 get --raw /metrics 2>/dev/null |
    sed -n 's/^apiserver_authentication_config_controller_last_config_info{.*[{,]hash="sha256:\([0-9a-f]*\)".*/\1/p' || true
}

facts() {
  local ca=$K3S_DATA_DIR/server/tls/server-ca.crt hash
  hash=$(ca_sha256)
  [[ -n $hash ]] || die "$K3S_DATA_DIR/server/token is not a secure token" "see: journalctl -u k3s"
  printf '{"node":%s,"version":%s,"ca_sha256":%s,"ca_pem":%s}\n' "$(json "$NODE_NAME")" \
    "$(json "$(k3s_version)")" "$(json "$hash")" "$(json "$(<"$ca")")"
}

remove_server() {
  k3s_may_remove || return 0
  leave_cluster
  remove_keepalived
  k3s_uninstall
  rm -f "$TEARDOWN"
}

# leave_cluster: through another server, so that the API that confirms it stays up. With three or more members K3s
# is stopped first: a removed member that starts again joins again (k3s-io/k3s#4023). Of two members both are needed
# until the other one is the only member: K3s runs on, but is not restarted.
leave_cluster() {
  local nodes members ready claims name
  [[ -d $K3S_DATA_DIR/server/db/etcd/member && -x $K3S ]] || return 0
  # By hand NODE_NAME may be another one, such as the name of the host: etcd would keep this server as a member.
  name=$({ cat "$K3S_CONFIG_DIR/config.yaml" 2>/dev/null || true; } | config_value node-name)
  NODE_NAME=${name:-$NODE_NAME}
  if is_torn_down; then
    note "the whole cluster is being removed: $NODE_NAME does not leave etcd first"
    return 0
  fi
  if ! find_other_server; then
    nodes=$(etcd_nodes) || {
      # Data that nobody else may have are deleted only after a person has stopped K3s.
      is_stopped "$UNIT" ||
        die "K3s is running here, but no server of the cluster answers" \
          "repair the cluster (journalctl -u $UNIT); to delete this server's data anyway: systemctl stop $UNIT, and retry"
      note "no server answers: the Node of $NODE_NAME is not deleted"
      return 0
    }
    members=$(grep -c . <<<"$nodes" || true)
    ((members <= 1)) ||
      die "etcd has $members members, but none of the other servers answers (${PEERS:-none known})" \
        "start K3s on them; for the last server of a cluster: k3s kubectl delete node NAME of the others"
    [[ -z ${OWNER:-} ]] ||
      die "$NODE_NAME is the last server of its cluster, whose data would be deleted; no changes made" \
        "keep a server of it in hosts.servers; if the cluster is to go: systemctl stop $UNIT here, and retry"
    return 0
  fi
  { nodes=$(etcd_nodes) && claims=$(local_claims); } || die "$API_SERVER no longer answers" "retry"
  [[ -z $claims ]] || die "claims have their data on the disk of this server: $claims; no changes made" \
    "copy what is needed, kubectl delete pvc and the pv that stays, retry; or list the server again"
  members=$(grep -c . <<<"$nodes" || true)
  ready=$(grep -v "^$NODE_NAME " <<<"$nodes" | grep -c True || true)
  is_stopped "$UNIT" || ((ready >= members / 2 + (members > 2))) ||
    die "etcd has $members members, but only $ready of the others are Ready: it needs $NODE_NAME; no changes made" \
      "repair them, then retry; one that is gone for good and shall not come back: k3s kubectl delete node NAME"
  if ((members > 2)); then
    stop_unit "$UNIT"
  else
    printf '[Service]\nRestart=no\n' | write_file "$LEAVING" 0644
    systemctl daemon-reload
  fi
  leave_etcd "$NODE_NAME" || {
    restart_again
    die "$NODE_NAME is still a member of etcd after $MEMBER_DEADLINE s" \
      "see on another server: journalctl -u k3s; then retry. To keep $NODE_NAME: systemctl enable --now $UNIT"
  }
  stop_unit "$UNIT"
  restart_again
  delete_node "$NODE_NAME" ||
    die "deleting Node $NODE_NAME failed" "run on another server: k3s kubectl delete node $NODE_NAME; then retry"
}

# local_claims: NAMESPACE/NAME of those whose volumes only this host has, such as of K3s's local-path (as busbar/kube/drain.py).
local_claims() {
  api 30 get pv -o 'jsonpath={range .items[*]}{.spec.claimRef.namespace}/{.spec.claimRef.name} {.spec.nodeAffinity.required.nodeSelectorTerms[*].matchExpressions[*].values[*]}{"\n"}{end}' |
    awk -v node="$NODE_NAME" '$1 != "/" { for (i = 2; i <= NF; i++) if ($i == node) { print $1; next } }' | paste -sd ' '
}

restart_again() {
  rm -f "$LEAVING"
  systemctl daemon-reload
}

# find_other_server: sets API_SERVER to the first of PEERS that answers.
find_other_server() {
  local peer
  for peer in ${PEERS:-}; do
    API_SERVER=https://$(bracketed "$peer"):6443
    if api 15 get --raw /readyz >/dev/null 2>&1; then return 0; fi
  done
  API_SERVER=""
  return 1
}

main
