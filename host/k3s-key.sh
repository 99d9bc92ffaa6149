#!/usr/bin/env bash
# The key that Secrets are encrypted with in etcd is rotated in three stages: prepare (all servers know the next key), rotate
# (it encrypts), reencrypt (all Secrets are written with it, the old one is dropped). In each, server 1 is first, and every
# server restarts. `busbar rotate STACK encryption-key` (busbar/operations/key_rotation.py) runs this in that order.
# `k3s secrets-encrypt rotate-keys` does the same in one stage, but with several servers those that have not restarted yet
# cannot read what server 1 has written, and what they write with the dropped key is lost (k3s-io/k3s
# pkg/server/handlers/secrets-encrypt.go). Safe to run again.
#
# Values: VERB (status: reports, changes nothing; stage: on server 1, does STAGE unless K3s is in it, and restarts; follow: takes
#   over the keys of server LEADER by a restart, unless this server has them), NODE_NAME, STAGE, LEADER.
# Facts: {"node"}, with status also {"enabled","stage","applied" (the stage of the running K3s),"hashes_match"}
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install k3s-api k3s-lib k3s-etcd

UNIT=k3s
HASHES_DEADLINE=180
# K3s writes some five Secrets per second.
REENCRYPT_DEADLINE=3600
REENCRYPT_TRIES=3
HASH_ANNOTATION='{.metadata.annotations.k3s\.io/encryption-config-hash}'

main() {
  begin
  [[ ! -e $STATE_DIR/restoring ]] ||
    die "an earlier restore of etcd is not finished on this host; no changes made" "finish it: busbar restore STACK --snapshot NAME --yes"
  poll 60 systemctl is-active --quiet "$UNIT" || die "$UNIT is not running here" "see: journalctl -u $UNIT; then retry"
  case $VERB in
    status) report ;;
    stage) lead ;;
    follow) follow ;;
    *) die "VERB=$VERB is unknown" "use status, stage or follow" ;;
  esac
}

report() {
  local applied
  poll 60 has_status || die "k3s secrets-encrypt status is not responding" "see: k3s secrets-encrypt status; then retry"
  applied=$(node_field "$NODE_NAME" "$HASH_ANNOTATION") || die "the Kubernetes API is not responding" "see: systemctl status $UNIT"
  printf '{"node":%s,"enabled":%s,"stage":%s,"applied":%s,"hashes_match":%s}\n' "$(json "$NODE_NAME")" "$(status enable)" \
    "$(json "$(status stage)")" "$(json "${applied%%-*}")" "$(status hashmatch)"
}

# lead: does the stage, unless K3s is in it already (an earlier run was interrupted), and restarts.
lead() {
  acquire_lock
  poll 60 has_status || die "k3s secrets-encrypt status is not responding" "see: k3s secrets-encrypt status; then retry"
  case $STAGE-$(status stage) in
    prepare-start | prepare-reencrypt_finished)
      take_snapshot
      advance
      ;;
    rotate-prepare) advance ;;
    prepare-prepare | rotate-rotate | reencrypt-reencrypt_finished) ;;
    reencrypt-rotate | reencrypt-reencrypt_*) reencrypt ;;
    *) die "the key is in stage '$(status stage)', from which '$STAGE' cannot begin" "see: k3s secrets-encrypt status" ;;
  esac
  restart
  facts
}

facts() {
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

# status FIELD: of `k3s secrets-encrypt status`; empty without an answer.
status() {
  { timeout 60 "$K3S" secrets-encrypt status -o json 2>/dev/null || true; } |
    sed -n "s/^[[:space:]]*\"$1\": *\"\{0,1\}\([a-z_]*\).*/\1/p"
}

has_status() {
  [[ -n $(status enable) ]]
}

hashes_match() {
  [[ $(status hashmatch) == true ]]
}

take_snapshot() {
  k3s_subcommand 120 etcd-snapshot save --name "busbar-before-key-$(date -u +%Y%m%dT%H%M%SZ)" ||
    die "the snapshot of etcd before the rotation of the key failed; no changes made" \
      "see the log above, and the free space: df -h $K3S_DATA_DIR/server/db/snapshots"
}

advance() {
  poll "$HASHES_DEADLINE" hashes_match ||
    die "the servers do not have the same keys: $(timeout 60 "$K3S" secrets-encrypt status 2>&1 | grep -i hash || true)" \
      "restart K3s on the server that differs, one at a time; then retry"
  note "the key of Secrets in etcd: $STAGE"
  k3s_subcommand 120 secrets-encrypt "$STAGE" ||
    die "k3s secrets-encrypt $STAGE failed" "see: journalctl -u $UNIT; then retry"
}

# reencrypt: K3s writes the Secrets after its command has ended. It gives up at the first error, such as a Secret that was
# deleted in the meantime, says so in its log only, and stays in its stage until it restarts, which takes it back to rotate.
reencrypt() {
  local try
  for ((try = 1; try <= REENCRYPT_TRIES; try++)); do
    ! is_in_stage rotate || advance
    poll "$REENCRYPT_DEADLINE" reencryption_has_ended ||
      die "Secrets were not re-encrypted within $REENCRYPT_DEADLINE s (stage '$(status stage)')" \
        "see: journalctl -u $UNIT | grep -i reencrypt; then retry"
    ! is_in_stage reencrypt_finished || return 0
    if is_in_stage rotate; then
      note "K3s restarted while it wrote the Secrets with the new key"
      continue
    fi
    note "K3s gave up writing the Secrets with the new key: $(reencryption_error)"
    ((try < REENCRYPT_TRIES)) || break
    restart
    poll "$HASHES_DEADLINE" is_in_stage rotate ||
      die "the key is in stage '$(status stage)' after a restart, expected rotate" "see: k3s secrets-encrypt status; then retry"
  done
  die "K3s gave up writing the Secrets with the new key $REENCRYPT_TRIES times, or restarted: $(reencryption_error)" \
    "see: journalctl -u $UNIT; restart $UNIT on this server; then retry"
}

reencryption_has_ended() {
  case $(status stage) in reencrypt_finished | rotate) return 0 ;; esac
  [[ -n $(reencryption_error) ]]
}

# is_in_stage STAGE: by what K3s says now.
is_in_stage() {
  [[ $(status stage) == "$1" ]]
}

# reencryption_error: what this start of K3s said when it gave up; empty while it writes.
reencryption_error() {
  local start
  start=$(systemctl show -p InvocationID --value "$UNIT")
  { journalctl "_SYSTEMD_INVOCATION_ID=$start" -o cat --no-pager 2>/dev/null || true; } |
    sed -n "s/.*SecretsUpdateError'\{0,1\} *//p" | tail -n 1
}

# follow: takes over the keys of server 1, which a restart reads from etcd.
# shellcheck disable=SC2153 # LEADER is a value of the script
follow() {
  acquire_lock
  if ! is_like_leader; then
    restart
    poll "$HASHES_DEADLINE" is_like_leader ||
      die "this server does not have the keys of $LEADER after its restart" "see: k3s secrets-encrypt status; journalctl -u $UNIT"
  fi
  facts
}

is_like_leader() {
  local own leader
  own=$(node_field "$NODE_NAME" "$HASH_ANNOTATION") && leader=$(node_field "$LEADER" "$HASH_ANNOTATION") || return 1
  [[ -n $own && $own == "$leader" ]]
}

restart() {
  k3s_restart "$UNIT"
  k3s_await_server
}

main
