#!/usr/bin/env bash
# The owner mark of a host, and its removal: VERB=remove acts only on what is still its own.
#
# Values: OWNER (project/stack/resource), INSTALL_ID (the same for all hosts of a cluster, also after the stack is
# renamed). Without OWNER the script runs by hand: removal then needs only a mark of any owner.

# owner_field NAME: role, owner or install_id of the mark; empty without a mark.
owner_field() {
  sed -n "s/^$1=//p" "$STATE_DIR/owner" 2>/dev/null || true
}

# claim_host ROLE: writes the mark before anything else is changed. A host of another cluster or in another role
# is refused: the removal that belongs to it would find it changed.
claim_host() {
  local role=$1 before
  before=$(owner_field role)
  if [[ -n $before ]]; then
    [[ $before == "$role" ]] ||
      die "this host is already a $before ($(owner_field owner))" \
        "remove it from hosts and run an update; then list it as a $role; if it stays: docs/hosts.md, By hand"
    refuse_other_cluster
  fi
  install -d -m 0700 "$STATE_DIR"
  printf 'role=%s\nowner=%s\ninstall_id=%s\n' "$role" "${OWNER:-by hand}" "${INSTALL_ID:-}" |
    write_file "$STATE_DIR/owner" 0600
}

# refuse_other_cluster: a host of another cluster is not changed.
refuse_other_cluster() {
  [[ -z ${INSTALL_ID:-} || -z $(owner_field install_id) || $(owner_field install_id) == "$INSTALL_ID" ]] ||
    die "this host belongs to another cluster ($(owner_field owner))" \
      "remove it there; if the state of that stack is lost: docs/hosts.md, By hand"
}

# may_remove: whether this host is still what VERB=remove was made for; else says why not, and prints the facts.
may_remove() {
  rm -rf "$STATE_DIR.removed"
  if [[ ! -s $STATE_DIR/owner ]]; then
    # A host on which prepare.sh ran, and no installation.
    rm -rf "$STATE_DIR/downloads"
    rmdir "$STATE_DIR" 2>/dev/null || true
    note "nothing here is marked as installed by busbar ($STATE_DIR/owner is missing); no changes made"
    removed false
    return 1
  fi
  [[ -n ${OWNER:-} ]] || return 0
  if [[ $(owner_field owner) != "$OWNER" || $(owner_field install_id) != "${INSTALL_ID:-}" ]]; then
    note "this host now belongs to $(owner_field owner) of cluster $(owner_field install_id), not to $OWNER of cluster ${INSTALL_ID:-}; no changes made"
    removed false
    return 1
  fi
}

# remove_state: forgets the host, as the last step and at once: a removal that is killed finds all or nothing.
remove_state() {
  mv "$STATE_DIR" "$STATE_DIR.removed"
  rm -rf "$STATE_DIR.removed" "$DELIVERED_DIR"
}

# removed TRUE_OR_FALSE: the facts of VERB=remove.
removed() {
  printf '{"node":%s,"removed":%s%s}\n' "$(json "$NODE_NAME")" "$1" "${NODE_AGAIN:+,\"node_again\":true}"
}
