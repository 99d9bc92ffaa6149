#!/usr/bin/env bash
# Rotations of certificates and tokens (k3s.rotate): one call, `with_rotations`, around the part of an installation that
# restarts K3s. Each kind has a number: ROTATE_<KIND> is the configured one, 0 without it, and STATE_DIR/rotated has the one
# that was done here. A higher number is due. A new installation notes its numbers.

ROTATION_KINDS=(certificates server_token agent_token)

# with_rotations COMMAND...: runs COMMAND, which restarts the unit, and the rotations. An agent has certificates only.
with_rotations() {
  refuse_lower_rotation
  k3s_has_joined || record_rotations
  if rotation_is_due certificates; then rotate_certificates_at_start; fi
  if tokens_are_due; then
    if [[ $FIRST == true ]]; then rotate_server_token "$(config_value token <"$K3S_CONFIG_DIR/config.yaml")" "$(next_token)"; fi
    forget_passwords
    rm -f "$STATE_DIR/$UNIT.sha256"
  fi
  "$@"
  finish_rotations
}

# k3s_has_joined: whether this host has data of its cluster.
k3s_has_joined() {
  if [[ $UNIT == k3s ]]; then has_data; else [[ -s $KUBECONFIG_FILE ]]; fi
}

finish_rotations() {
  if rotation_is_due certificates; then certificates_are_rotated; fi
  if tokens_are_due && [[ $FIRST == true ]]; then
    save_passwords "$(next_token)"
    # Snapshots made earlier need the earlier token. Without a new one the other servers are rotated all the same.
    ! rotation_is_due server_token ||
      k3s_subcommand 120 etcd-snapshot save --name "busbar-after-token-$(rotation_wanted server_token)" ||
      note "the snapshot of etcd after the rotation of the server token failed; take one: k3s etcd-snapshot save"
  fi
  record_rotations
  [[ $UNIT != k3s ]] || token_digest "$(next_token)" | write_file "$STATE_DIR/token-in-etcd" 0600
}

tokens_are_due() {
  rotation_is_due server_token || rotation_is_due agent_token
}

next_token() {
  desired_value token
}

# rotation_wanted KIND
rotation_wanted() {
  local value=ROTATE_${1^^}
  printf '%s' "${!value:-0}"
}

# rotation_done KIND: 0 where it never was.
rotation_done() {
  local number
  number=$(sed -n "s/^$1 //p" "$STATE_DIR/rotated" 2>/dev/null || true)
  printf '%s' "${number:-0}"
}

rotation_is_due() {
  (($(rotation_wanted "$1") > $(rotation_done "$1")))
}

# record_rotation KIND NUMBER
record_rotation() {
  { grep -v "^$1 " "$STATE_DIR/rotated" 2>/dev/null || true; printf '%s %s\n' "$1" "$2"; } | write_file "$STATE_DIR/rotated" 0600
}

# record_rotations: all that are wanted are done.
record_rotations() {
  local kind
  for kind in "${ROTATION_KINDS[@]}"; do
    if rotation_is_due "$kind"; then record_rotation "$kind" "$(rotation_wanted "$kind")"; fi
  done
}

refuse_lower_rotation() {
  local kind
  for kind in "${ROTATION_KINDS[@]}"; do
    (($(rotation_wanted "$kind") >= $(rotation_done "$kind"))) ||
      die "k3s.rotate.$kind is $(rotation_wanted "$kind"), but $(rotation_done "$kind") is done here; K3s was not changed" \
        "set it to $(rotation_done "$kind"), or to a higher number to rotate again"
  done
}

# rotate_certificates_at_start: K3s has to be stopped meanwhile. systemd does it between stop and start, so that a
# script that is killed leaves no stopped K3s; the flag makes it happen once, also if K3s then crashes.
rotate_certificates_at_start() {
  local flag=$STATE_DIR/rotate-certificates
  note "the certificates will be rotated when $UNIT restarts; the authorities stay"
  touch "$flag"
  write_file "/run/systemd/system/$UNIT.service.d/90-busbar-rotate.conf" 0644 <<END
[Service]
ExecStartPre=/bin/sh -c 'test ! -e $flag || { $K3S certificate rotate && rm -f $flag; }'
END
  rm -f "$STATE_DIR/$UNIT.sha256"
}

# certificates_are_rotated: after the start.
certificates_are_rotated() {
  [[ ! -e $STATE_DIR/rotate-certificates ]] ||
    die "$UNIT is running, but its certificates were not rotated ($STATE_DIR/rotate-certificates exists)" \
      "see: journalctl -u $UNIT; then retry"
  rm -f "/run/systemd/system/$UNIT.service.d/90-busbar-rotate.conf"
  systemctl daemon-reload
  record_rotation certificates "$(rotation_wanted certificates)"
}

# password_of TEXT: what follows the last colon of a token.
password_of() {
  printf '%s' "${1##*:}"
}

token_digest() {
  # The same as install_id in busbar/hosts/k3s.py.
  printf 'busbar install %s' "$(password_of "$1")" | sha256sum | cut -c1-16
}

# put_token EARLIER NEXT: what `k3s token rotate` does (k3s-io/k3s pkg/cli/token/token.go `Rotate`). The command takes the token
# as an argument, which every user of the host can read meanwhile; curl reads it from a pipe. With the token that the cluster
# has already, K3s only saves its passwords and certificates in etcd. Prints the HTTP status.
put_token() {
  printf 'user = "server:%s"\ndata = "{\\"newToken\\":\\"%s\\"}"\n' "$1" "$2" |
    curl -sS --noproxy '*' -K - -X PUT -H 'Content-Type: application/json' --cacert "$K3S_DATA_DIR/server/tls/server-ca.crt" \
      --max-time 90 -o /dev/null -w '%{http_code}' https://127.0.0.1:6443/v1-k3s/token
}

# rotate_server_token EARLIER NEXT: on server 1, before its config.yaml has the next one. Others take the earlier until they restart.
rotate_server_token() {
  local earlier next status
  earlier=$(password_of "$1") next=$(password_of "$2")
  [[ -n $earlier && $earlier != "$next" ]] || return 0
  if ! poll 60 systemctl is-active --quiet k3s; then
    # It cannot start with the earlier token: a run was interrupted after the rotation.
    token_is_in_etcd "$next" || die "k3s is not running here, and without it the server token cannot be rotated; no changes made" \
      "see: journalctl -u k3s; start it (systemctl start k3s), then retry"
    return 0
  fi
  ! token_is_in_etcd "$next" || return 0
  note "the server token is rotated; earlier snapshots of etcd need the earlier token (docs/hosts.md)"
  status=$(put_token "$earlier" "$next") || status="no answer"
  # Interrupted right after the rotation, and restarted since: then it accepts the next one only.
  [[ $status != 401 ]] || status=$(put_token "$next" "$next") || status="no answer"
  [[ $status == 200 ]] || die "k3s did not rotate the server token (PUT /v1-k3s/token: $status)" \
    "see: journalctl -u k3s; then retry"
  token_digest "$next" | write_file "$STATE_DIR/token-in-etcd" 0600
}

# token_is_in_etcd TOKEN: whether this server has rotated to it: its digest is noted, or K3s said so when it did not start.
token_is_in_etcd() {
  local since
  [[ $(cat "$STATE_DIR/token-in-etcd" 2>/dev/null || true) != "$(token_digest "$1")" ]] || return 0
  systemctl is-active --quiet k3s && return 1
  since=$(systemctl show -p ActiveEnterTimestamp --value k3s)
  journalctl -u k3s --since "${since:--1day}" --no-pager -o cat 2>/dev/null | grep -F "encrypted with different token" >/dev/null
}

# forget_passwords: K3s writes changed tokens into cred/passwd, but not into etcd, and then refuses its next start, because the
# file is newer than etcd's (rancher/rke2#5785). Without the file it takes etcd's and adds the configured tokens.
forget_passwords() {
  rm -f "$K3S_DATA_DIR/server/cred/passwd"
}

# save_passwords TOKEN: on server 1 with changed tokens: the others find them in etcd, and so does its own next start.
save_passwords() {
  poll 60 passwords_are_saved "$(password_of "$1")" || die "k3s did not save its tokens in etcd (PUT /v1-k3s/token)" \
    "see: journalctl -u k3s; then retry"
}

passwords_are_saved() {
  [[ $(put_token "$1" "$1") == 200 ]]
}
