#!/usr/bin/env bash
# Functions of a K3s server to rotate its tokens.

# password_of TEXT: what follows the last colon of a token.
password_of() {
  printf '%s' "${1##*:}"
}

token_digest() {
  # As busbar/hosts/k3s.py: install_id
  printf 'busbar install %s' "$(password_of "$1")" | sha256sum | cut -c1-16
}

# put_token NOW NEXT: what `k3s token rotate` does (k3s-io/k3s pkg/cli/token/token.go `Rotate`). The command takes the token
# as an argument, which every user of the host can read meanwhile; curl reads it from a pipe. With the token that the cluster
# has already, K3s only saves its passwords and certificates in etcd. Prints the HTTP status.
put_token() {
  printf 'user = "server:%s"\ndata = "{\\"newToken\\":\\"%s\\"}"\n' "$1" "$2" |
    curl -sS --noproxy '*' -K - -X PUT -H 'Content-Type: application/json' --cacert "$K3S_DATA_DIR/server/tls/server-ca.crt" \
      --max-time 90 -o /dev/null -w '%{http_code}' https://127.0.0.1:6443/v1-k3s/token
}

# rotate_server_token NOW NEXT: on server 1 only, before its config.yaml has the next token: encrypts the data in etcd anew.
# Servers that run accept the token of now until they restart.
rotate_server_token() {
  local now next status
  now=$(password_of "$1") next=$(password_of "$2")
  if ! poll 60 systemctl is-active --quiet k3s; then
    # It cannot start with the token of now any more: an earlier run was interrupted after the rotation.
    token_is_in_etcd "$next" || die "k3s does not run here, and without it the server token cannot be rotated; no changes made" \
      "see: journalctl -u k3s; start it (systemctl start k3s), then retry"
    return 0
  fi
  ! token_is_in_etcd "$next" || return 0
  note "the server token is rotated; snapshots of etcd from before need the token of before (docs/hosts.md)"
  status=$(put_token "$now" "$next") || status="no answer"
  # Interrupted right after the rotation, and restarted since: then it accepts the next one only.
  [[ $status != 401 ]] || status=$(put_token "$next" "$next") || status="no answer"
  [[ $status == 200 ]] || die "k3s did not rotate the server token (PUT /v1-k3s/token: $status)" \
    "see: journalctl -u k3s; then retry"
  token_digest "$next" | write_file "$STATE_DIR/token-in-etcd" 0600
}

# token_is_in_etcd TOKEN: whether this server has rotated to it: its digest is noted here, or K3s does not start any more, and
# has said why since it last ran.
token_is_in_etcd() {
  local since
  [[ $(cat "$STATE_DIR/token-in-etcd" 2>/dev/null || true) != "$(token_digest "$1")" ]] || return 0
  systemctl is-active --quiet k3s && return 1
  since=$(systemctl show -p ActiveEnterTimestamp --value k3s)
  journalctl -u k3s --since "${since:--1day}" --no-pager -o cat 2>/dev/null | grep -F "encrypted with different token" >/dev/null
}

# forget_keys: what a server that joins anew takes from etcd, which may be older than its own files.
forget_keys() {
  rm -f "$K3S_DATA_DIR/server/cred/"{passwd,encryption-config.json,encryption-state.json}
}

# forget_passwords: K3s writes changed tokens into cred/passwd, but not into etcd, and then refuses its next start, because the
# file is newer than etcd's (rancher/rke2#5785). Without the file it takes etcd's and adds the configured tokens.
forget_passwords() {
  rm -f "$K3S_DATA_DIR/server/cred/passwd"
}

# save_passwords TOKEN: on server 1 after its start with changed tokens: the others find them in etcd, and so does its own next
# start.
save_passwords() {
  poll 60 passwords_are_saved "$(password_of "$1")" || die "k3s did not save its tokens in etcd (PUT /v1-k3s/token)" \
    "see: journalctl -u k3s; then retry"
}

passwords_are_saved() {
  [[ $(put_token "$1" "$1") == 200 ]]
}
