#!/usr/bin/env bash
# One stage of the rotation of the key that Secrets are encrypted with in etcd, on one server. The stages are prepare (all
# servers know the next key), rotate (it encrypts), reencrypt (all Secrets are written with it, the old one is dropped); in each,
# server 1 is first, and every server restarts. `k3s secrets-encrypt rotate-keys` does the same in one, but with several
# servers those that have not restarted yet cannot read what server 1 has written, and what they write with the dropped key
# is lost (k3s-io/k3s pkg/server/handlers/secrets-encrypt.go). Safe to run again.
#
# Values: NODE_NAME, LEADER (name of server 1), STAGE, ROTATE_ENCRYPTION_KEY (k3s.rotate.encryption_key).
# Facts: {"node","key","stage"}
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib lib-install k3s-api k3s-lib k3s-rotation; do
  # shellcheck source=/dev/null
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

UNIT=k3s
READY_DEADLINE=420
HASHES_DEADLINE=180
# K3s writes some five Secrets per second.
REENCRYPT_DEADLINE=3600
REENCRYPT_TRIES=3
STAGES=(prepare rotate reencrypt)
HASH_ANNOTATION='{.metadata.annotations.k3s\.io/encryption-config-hash}'

# shellcheck disable=SC2153 # values of the script
main() {
  begin
  acquire_lock
  refuse_lower_rotation
  poll 60 systemctl is-active --quiet "$UNIT" || die "$UNIT does not run here" "see: journalctl -u $UNIT; then retry"
  if [[ $NODE_NAME == "$LEADER" ]]; then lead; else follow; fi
  printf '{"node":%s,"key":%s,"stage":%s}\n' "$(json "$NODE_NAME")" "$ROTATE_ENCRYPTION_KEY" "$(json "$STAGE")"
}

# lead: does the stage, unless it is done, and restarts. `encryption_stage` counts the stages of all rotations.
lead() {
  local goal
  goal=$((3 * (ROTATE_ENCRYPTION_KEY - 1) + $(stage_number)))
  (($(rotation_done encryption_stage) < goal)) || return 0
  poll 60 has_status || die "k3s secrets-encrypt status does not answer" "see: k3s secrets-encrypt status; then retry"
  [[ $(status enable) == true ]] ||
    die "Secrets are not encrypted in etcd on this server; there is no key to rotate" \
      "remove secrets-encryption from the files in $K3S_CONFIG_DIR/config.yaml.d, or set k3s.rotate.encryption_key back"
  case $STAGE-$(status stage) in
    prepare-start | prepare-reencrypt_finished)
      take_snapshot
      advance
      ;;
    rotate-prepare) advance ;;
    reencrypt-rotate) reencrypt ;;
    # An earlier run was interrupted after the stage, or in it.
    prepare-prepare | rotate-rotate | reencrypt-reencrypt_finished) ;;
    reencrypt-reencrypt_*) reencrypt ;;
    *)
      die "the key is in stage '$(status stage)', from which '$STAGE' cannot begin" \
        "see: k3s secrets-encrypt status; finish the rotation that was begun by hand, then retry"
      ;;
  esac
  restart
  record_rotation encryption_stage "$goal"
  [[ $STAGE != reencrypt ]] || record_rotation encryption_key "$ROTATE_ENCRYPTION_KEY"
}

stage_number() {
  local at
  for at in "${!STAGES[@]}"; do
    [[ ${STAGES[at]} != "$STAGE" ]] || printf '%s' $((at + 1))
  done
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
  timeout 120 "$K3S" etcd-snapshot save --name "busbar-before-key-$ROTATE_ENCRYPTION_KEY" >&2 ||
    die "the snapshot of etcd before the rotation of the key failed; no changes made" \
      "see the log above, and the free space: df -h $K3S_DATA_DIR/server/db/snapshots"
}

advance() {
  poll "$HASHES_DEADLINE" hashes_match ||
    die "the servers do not have the same keys: $(timeout 60 "$K3S" secrets-encrypt status 2>&1 | grep -i hash || true)" \
      "restart K3s on the server that differs, one at a time; then retry"
  note "the key of Secrets in etcd: $STAGE"
  timeout 120 "$K3S" secrets-encrypt "$STAGE" >&2 ||
    die "k3s secrets-encrypt $STAGE failed" "see: journalctl -u $UNIT; then retry"
}

# reencrypt: K3s writes the Secrets after its command has ended. It gives up at the first error, such as a Secret that was
# deleted in the meantime, says so in its log only, and stays in its stage until it restarts, which takes it back to rotate.
reencrypt() {
  local try
  for ((try = 1; try <= REENCRYPT_TRIES; try++)); do
    ! is_in_stage rotate || advance
    poll "$REENCRYPT_DEADLINE" reencryption_has_ended ||
      die "Secrets were not encrypted anew within $REENCRYPT_DEADLINE s (stage '$(status stage)')" \
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
follow() {
  ! is_like_leader || return 0
  restart
  poll "$HASHES_DEADLINE" is_like_leader ||
    die "this server does not have the keys of $LEADER after its restart" "see: k3s secrets-encrypt status; journalctl -u $UNIT"
}

is_like_leader() {
  local own leader
  own=$(node_field "$NODE_NAME" "$HASH_ANNOTATION") && leader=$(node_field "$LEADER" "$HASH_ANNOTATION") || return 1
  [[ -n $own && $own == "$leader" ]]
}

restart() {
  k3s_restart "$UNIT"
  k3s_await "$UNIT" "$(k3s_ready_seconds "$READY_DEADLINE")" "Node $NODE_NAME Ready and a voter in etcd" \
    k3s_node_has "$KUBECONFIG_FILE" Ready=True EtcdIsVoter=True
}

main
