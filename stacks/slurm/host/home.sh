#!/usr/bin/env bash
# The homes of all hosts, mounted from the one that exports them.
#
# Values: HOME_PATH, HOME_SERVER (the address of the NFS server; empty where busbar mounts nothing).

HOME_MOUNTED=$STATE_DIR/home.mounted

# apply_home: mounted now and at each boot, at the path that it has on the server. It waits for a server that is gone (hard).
apply_home() {
  local unit before
  before=$(cat "$HOME_MOUNTED" 2>/dev/null || true)
  [[ -n $HOME_SERVER && ${before:-$HOME_PATH} == "$HOME_PATH" ]] || remove_home
  [[ -n $HOME_SERVER ]] || return 0
  unit=$(systemd-escape -p --suffix=mount "$HOME_PATH")
  { [[ -e $HOME_MOUNTED ]] && systemctl is-active --quiet "$unit"; } ||
    { ! mountpoint -q "$HOME_PATH" && [[ -z $(ls -A "$HOME_PATH" 2>/dev/null) ]]; } ||
    die "$HOME_PATH has files or is mounted already" "move the files to $HOME_PATH of $HOME_SERVER; unmount it (/etc/fstab)"
  printf '%s\n' "$HOME_PATH" >"$HOME_MOUNTED"
  printf '# Written by busbar\n[Mount]\nWhat=%s:%s\nWhere=%s\nType=nfs4\nOptions=hard,noatime,nosuid\n\n[Install]\nWantedBy=remote-fs.target\n' \
    "$HOME_SERVER" "$HOME_PATH" "$HOME_PATH" | write_file "/etc/systemd/system/$unit" 0644
  start_unit "$unit" "$HOME_SERVER"
}

# remove_home: the data stay on the server.
remove_home() {
  local path unit
  path=$(cat "$HOME_MOUNTED" 2>/dev/null) || return 0
  unit=$(systemd-escape -p --suffix=mount "$path")
  stop_unit "$unit"
  rm -f "/etc/systemd/system/$unit" "$HOME_MOUNTED" "$STATE_DIR/$unit.started"
  systemctl daemon-reload
  rmdir "$path" 2>/dev/null || true
}
