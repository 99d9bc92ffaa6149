#!/usr/bin/env bash
# The users of the cluster, alike on every host.
#
# Values: HOME_PATH. Payload: users (lines "user NAME UID", each followed by "key TEXT" for its public keys).

apply_users() {
  local kind text name="" wanted
  wanted=$(payload users)
  while read -r kind text; do
    case $kind in
      user)
        name=${text% *}
        create_user "$name" "${text#* }"
        ;;
      key) add_ssh_key "$name" "$text" ;;
    esac
  done <<<"$wanted"
  for name in $(unwanted_users); do
    delete_user "$name" || die "user $name cannot be deleted" "end its processes: ps -u $name"
  done
}

# unwanted_users: those that busbar has created, and that are not in the configuration any more.
unwanted_users() {
  grep -vxFf <(payload users | sed -n 's/^user \([^ ]*\) .*/\1/p') "$STATE_DIR/users.created" 2>/dev/null || true
}

# create_user NAME UID: its home is made where there is none yet: on a shared file system the first host makes it.
create_user() {
  local folder=$HOME_PATH/$1 home
  home=$(getent passwd "$1" | cut -d: -f6 || true)
  if ! id -u "$1" >/dev/null 2>&1; then
    printf '%s\n' "$1" >>"$STATE_DIR/users.created"
    useradd -u "$2" -U -M -d "$folder" -s /bin/bash "$1" >&2 || {
      forget_user "$1"
      die "user $1 cannot be created" "useradd says why above; then retry"
    }
  elif [[ $home != "$folder" ]] && grep -qxF "$1" "$STATE_DIR/users.created" 2>/dev/null; then
    # It was made below another HOME_PATH: its files, and what runs, are in the former one.
    note "user $1 has its home at $home, not below $HOME_PATH; when its files are there and nothing of it runs, on each host: usermod -d $folder $1"
  fi
  [[ -d $folder ]] || install -d -m 0700 -o "$1" -g "$2" "$folder" 2>/dev/null || [[ -d $folder ]] ||
    die "$folder cannot be made" "make it on the host that has this file system: install -d -m 0700 -o $2 -g $2 $folder"
}

# add_ssh_key NAME KEY: as the user, because on a shared file system root may have no rights.
add_ssh_key() {
  # shellcheck disable=SC2016 # of the user's shell
  runuser -u "$1" -- sh -c 'umask 077; mkdir -p ~/.ssh && touch ~/.ssh/authorized_keys &&
    { grep -qxF "$1" ~/.ssh/authorized_keys || printf "%s\n" "$1" >>~/.ssh/authorized_keys; }' sh "$2" </dev/null ||
    die "authorized_keys of $1 cannot be written" "check that $1 owns its home"
}

# delete_user NAME: its home stays.
delete_user() {
  ! id -u "$1" >/dev/null 2>&1 || userdel "$1" >&2 || return 1
  forget_user "$1"
}

forget_user() {
  sed -i "/^$1\$/d" "$STATE_DIR/users.created"
}

remove_users() {
  local name
  for name in $(cat "$STATE_DIR/users.created" 2>/dev/null || true); do
    delete_user "$name" || note "user $name stays: it has processes"
  done
}
