#!/usr/bin/env bash
# An NFS server that exports one folder to the workers, beside exports that the site has already.
# VERB=install: the folder is exported to exactly these workers. VERB=remove: no longer exported; the data stay.
#
# Values: OWNER, INSTALL_ID, NODE_NAME, FOLDER, SQUASH (all, root, none), ALLOW_SYSTEM_DISK (true or false), FOLDER_MODE (of a
# folder that is made; by default as SQUASH needs it), FORMER (stay: other workers keep it that have it).
# Payload: exports (lines "FOLDER CLIENT(OPTIONS)"), nfs_conf (of a server that busbar installs).
# Facts: {"node","folder","clients"} (how many lines are exported)
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner packages nfs-lib

PACKAGE=nfs-kernel-server
CLIENTS=/proc/fs/nfsd/clients
# The lease of an NFSv4 client, after which it counts as gone (nfsd(7), nfsv4leasetime), and a little more.
LEASE_DEADLINE=120

main() {
  begin_verb install remove
  # State and lock are its own: on a server K3s is installed meanwhile, which may take longer than a step waits.
  STATE_DIR=$NFS_STATE_DIR LOCK_FILE=${LOCK_FILE%.lock}-nfs.lock
  acquire_lock
  "${VERB}_server"
}

install_server() {
  local former
  check_folder
  claim_host "NFS server"
  former=$({ grep -m 1 ^/ "$NFS_EXPORTS" 2>/dev/null || true; } | cut -d ' ' -f 1)
  [[ -z $former || $former == "$FOLDER" ]] || FOLDER=$former await_unmounted
  # Only a server that is ours is configured: the site's may serve other clients with other versions.
  if ! package_installed "$PACKAGE" || [[ -e $STATE_DIR/$PACKAGE.installed ]]; then
    configure_server
  fi
  install_package "$PACKAGE"
  make_folder
  { exports; former_exports; } | write_file "$NFS_EXPORTS" 0644
  systemctl enable -q "$NFS_UNIT" 2>/dev/null || true
  systemctl is-active --quiet "$NFS_UNIT" || timeout 90 systemctl start "$NFS_UNIT" ||
    die "$NFS_UNIT did not start" "see: journalctl -u $NFS_UNIT; a kernel without nfsd cannot serve (modprobe nfsd)"
  export_folder
  record_applied "$NFS_EXPORTS" "$NFS_CONFIG"
  printf '{"node":%s,"folder":%s,"clients":%s}\n' "$(json "$NODE_NAME")" "$(json "$FOLDER")" \
    "$(exported_clients | wc -l)"
}

check_folder() {
  local foreign
  case $(folder_kind "$FOLDER") in
    link) die "$FOLDER is reached through a symbolic link: it is $(readlink -m "$FOLDER")" "set nfs_server.folder to that" ;;
    other) die "$FOLDER is not a folder" "set nfs_server.folder to another one" ;;
  esac
  foreign=$(foreign_exports "$FOLDER")
  [[ -z $foreign ]] ||
    die "$FOLDER is exported already (${foreign//$'\n'/, })" "set nfs_server.folder to another folder, or remove that export"
  [[ $ALLOW_SYSTEM_DISK == true ]] || ! on_system_disk "$FOLDER" ||
    die "$FOLDER is on the disk of the operating system" \
      "mount a disk there, or set nfs_server.allow_system_disk: true"
}

# configure_server: restarts a running server only if the file changes, which it does with a new busbar only.
configure_server() {
  local before
  before=$(cat "$NFS_CONFIG" 2>/dev/null || true)
  payload nfs_conf | write_file "$NFS_CONFIG" 0644
  if [[ $before != "$(<"$NFS_CONFIG")" ]] && systemctl is-active --quiet "$NFS_UNIT"; then
    timeout 90 systemctl restart "$NFS_UNIT" || die "$NFS_UNIT did not restart" "see: journalctl -u $NFS_UNIT"
  fi
}

# make_folder: nobody's, where that is every user of the workers; else like /tmp. An existing folder stays as it is.
make_folder() {
  [[ ! -d $FOLDER ]] || return 0
  mkdir -p "$FOLDER"
  if [[ -n ${FOLDER_MODE:-} ]]; then
    chmod "$FOLDER_MODE" "$FOLDER"
  elif [[ $SQUASH == all ]]; then
    chown "$NFS_NOBODY:$NFS_NOBODY" "$FOLDER"
    chmod 0770 "$FOLDER"
  else
    chmod 1777 "$FOLDER"
  fi
}

# exports: those of the payload; a folder on a disk of its own is exported only while that is mounted (exports(5), mp):
# else jobs would write to the disk of the operating system.
exports() {
  local disk
  disk=$(df --output=target "$FOLDER" | tail -n 1)
  if on_system_disk "$FOLDER" || [[ ! $disk =~ ^[A-Za-z0-9._/-]+$ ]]; then
    payload exports
  else
    payload exports | sed "s|(|(mp=$disk,|"
  fi
}

# former_exports: lines of this folder to clients that are not in the payload.
former_exports() {
  [[ ${FORMER:-} != stay ]] || payload exports | awk -v folder="$FOLDER" '
    { client = $2; sub(/\(.*/, "", client) }
    FNR == NR { is_listed[client] = 1; next }
    $1 == folder && !(client in is_listed)' - <(cat "$NFS_EXPORTS" 2>/dev/null || true)
}

# export_folder: the running server follows the file, without a restart; the result is compared with it.
export_folder() {
  local wanted actual
  timeout 60 exportfs -ra >&2 || die "exportfs -ra failed" "see the log above: another file in $EXPORTS_DIR may be wrong"
  wanted=$(sed -n 's/^[^# ][^ ]* \([^(]*\)(.*/\1/p' "$NFS_EXPORTS")
  actual=$(exported_clients)
  # exportfs prints the canonical names of hosts: the numbers must agree.
  [[ $(wc -l <<<"$wanted") == "$(wc -l <<<"$actual")" && -n $actual ]] ||
    die "$FOLDER is exported to ${actual//$'\n'/, }, expected ${wanted//$'\n'/, }" \
      "see exportfs -s; names of workers must resolve on this host"
}

# exported_clients: a line per client of the folder.
exported_clients() {
  { timeout 30 exportfs -s 2>/dev/null || true; } |
    awk -v folder="$FOLDER" '$1 == folder { sub(/\(.*/, "", $2); print $2 }'
}

remove_server() {
  may_remove || return 0
  await_unmounted
  rm -f "$NFS_EXPORTS"
  ! command -v exportfs >/dev/null || timeout 60 exportfs -ra >&2 || note "exportfs -ra failed; see: exportfs -s"
  if [[ -e $STATE_DIR/$PACKAGE.installed ]]; then
    rm -f "$NFS_CONFIG"
    # Others may have added exports since.
    if grep -qsE '^[[:space:]]*"?/' "$EXPORTS" "$EXPORTS_DIR"/*.exports; then
      note "$PACKAGE stays: other folders are exported"
    else
      stop_unit "$NFS_UNIT"
      package_purge "$PACKAGE" || note "purging $PACKAGE failed; it stays, stopped and disabled"
    fi
  fi
  [[ ! -d $FOLDER ]] || note "$FOLDER is no longer exported; its data stay on this host"
  remove_state
  removed true
}

# await_unmounted: the files of a folder that is not exported any more are stale for the pods that have it mounted.
await_unmounted() {
  poll "$LEASE_DEADLINE" no_clients ||
    die "$FOLDER is still mounted by $(active_clients | paste -sd, -)" \
      "unmount it there (destroy the stacks whose pods use it), and retry"
}

no_clients() {
  [[ -z $(active_clients) ]]
}

# exported_addresses: of the clients; names have several.
exported_addresses() {
  local client
  while IFS= read -r client; do
    [[ -z $client ]] || getent ahosts "$client" | awk '{ print $1 }' || true
  done <<<"$(exported_clients)"
}

# active_clients: addresses of exported clients with state of NFSv4 (Linux Documentation/admin-guide/nfs/).
active_clients() {
  local info address exported
  exported=$(exported_addresses)
  for info in "$CLIENTS"/*/info; do
    [[ -r $info ]] || continue
    grep -q '^status: confirmed' "$info" || continue
    address=$(sed -n 's/^address: "\(.*\):[0-9]*"$/\1/p' "$info")
    address=${address#[}
    address=${address%]}
    ! grep -qxF "$address" <<<"$exported" || printf '%s\n' "$address"
  done
}

main
