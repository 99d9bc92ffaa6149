#!/usr/bin/env bash
# Functions of the Slurm scripts: packages, the key, units. They follow lib, lib-install, owner, packages and slurm-fields of host/.
#
# Values: SLURM_PACKAGES (os, or a folder with SchedMD's .deb files), CONTAINERS (empty, or a folder with those of enroot and pyxis).

SLURM_FOLDER=/etc/slurm
SLURM_KEY=$SLURM_FOLDER/slurm.key
UNIT_DEADLINE=90
OLDEST=23.11

# install_slurm NAME...: the packages slurmctld, slurmd, slurmdbd, sackd, client, or others of the operating system (with a
# leading +). What came with them is remembered, so that removal purges exactly that: also where it fails, because others install
# packages until the next run.
install_slurm() {
  local name
  [[ -e $STATE_DIR/packages.before ]] || installed_packages | write_file "$STATE_DIR/packages.before" 0600
  trap record_packages EXIT
  [[ $SLURM_PACKAGES == os ]] || install_file slurm-smd
  for name; do
    if [[ $name == +* ]]; then
      # mariadb-server would take the place of a MySQL.
      package_installed "${name#+}" || apt_install --no-remove "${name#+}"
    elif [[ $SLURM_PACKAGES == os ]]; then
      [[ $name != client ]] || name=slurm-client
      # Debian's packages start slurmd and sackd at once, which look for a configuration until systemd gives up after 90 s.
      package_installed "$name" || systemctl mask --runtime -q "$name" 2>/dev/null || true
      package_install "$name"
      systemctl unmask --runtime -q "$name" 2>/dev/null || true
    else
      install_file "slurm-smd-$name"
    fi
  done
  [[ -z $CONTAINERS ]] || install_containers
  # Preflight cannot tell where the package lists were empty.
  [[ $(printf '%s\n' "$OLDEST" "$(slurm_version "$1")" | sort -V | head -n 1) == "$OLDEST" ]] ||
    die "Slurm $(slurm_version "$1") is too old: auth/slurm and sackd came with $OLDEST" \
      "use Debian 13 or Ubuntu 24.04, or set packages to a folder with SchedMD's .deb files"
  id -u slurm >/dev/null 2>&1 || die "there is no user slurm" "create it with the same uid on every host, and retry"
  trap - EXIT
  record_packages
}

record_packages() {
  { cat "$STATE_DIR/packages.added" 2>/dev/null || true
    installed_packages | comm -13 "$STATE_DIR/packages.before" -; } | sort -u | write_file "$STATE_DIR/packages.added" 0600
  rm -f "$STATE_DIR/packages.before"
}

installed_packages() {
  dpkg-query -W -f '${Package} ${db:Status-Status}\n' | sed -n 's/ installed$//p' | sort
}

# install_file PACKAGE: from the folder, the newest there; also over an older one.
install_file() {
  local file
  file=$(find "$SLURM_PACKAGES" -maxdepth 1 -name "$1_*.deb" 2>/dev/null | sort -V | tail -n 1)
  [[ -n $file ]] || die "$SLURM_PACKAGES has no $1_*.deb" "put SchedMD's .deb files there on every host, or set packages: os"
  [[ $(package_version "$1") == "$(dpkg-deb -f "$file" Version)" ]] || apt_install "$file"
}

# install_containers: all packages of the folder by one apt, since they need each other.
install_containers() {
  local file files=()
  for file in "$CONTAINERS"/*.deb; do
    [[ $(package_version "$(dpkg-deb -f "$file" Package)") == "$(dpkg-deb -f "$file" Version)" ]] || files+=("$file")
  done
  ((${#files[@]} == 0)) || apt_install "${files[@]}"
}

# await_containers: with the configuration that the controller serves.
await_containers() {
  [[ -z $CONTAINERS ]] || poll 60 offers_containers ||
    die "srun --help lists no --container-image: $(timeout 10 srun --help 2>&1 >/dev/null | paste -sd ' ' -)" \
      "pyxis must be built for the Slurm of this host; see plugstack.conf and /usr/share/pyxis"
}

offers_containers() {
  [[ $(timeout 10 srun --help 2>/dev/null) == *--container-image* ]]
}

# slurm_version NAME: of the package of NAME; the commands of Slurm tell theirs only where they find a controller.
slurm_version() {
  local found
  found=$(package_version "$1")
  printf '%s' "${found:-$(package_version "slurm-smd-$1")}"
}

# answers: whether slurmctld does.
answers() {
  [[ $(timeout 10 scontrol ping 2>/dev/null) == *"is UP"* ]]
}

# remember_user: whether the user slurm was there before its package; then it stays.
remember_user() {
  [[ -e $STATE_DIR/packages.added || -e $STATE_DIR/user.created ]] || id -u slurm >/dev/null 2>&1 || touch "$STATE_DIR/user.created"
}

# remove_packages: those that came with busbar, the configuration too, and the user that they made.
remove_packages() {
  local added=() planned others
  [[ ! -s $STATE_DIR/packages.added ]] || mapfile -t added <"$STATE_DIR/packages.added"
  if ! planned=$( ((${#added[@]} == 0)) || apt-get -s purge "${added[@]}" 2>&1); then
    note "${added[*]} stay, stopped and disabled: apt-get does not tell what would go with them: $(tail -n 1 <<<"$planned")"
    return
  fi
  others=$(sed -n 's/^\(Purg\|Remv\) \([^ :]*\).*/\2/p' <<<"$planned" | grep -vxFf "$STATE_DIR/packages.added" | paste -sd ' ' - || true)
  if [[ -n $others ]]; then
    note "packages that others have installed need some of ${added[*]}, and all of these stay, stopped and disabled: $others"
  elif ((${#added[@]} > 0)); then
    apt_change 480 purge -y "${added[@]}" || note "purging ${added[*]} failed; they stay, stopped and disabled"
  fi
  [[ ! -e $STATE_DIR/user.created ]] || userdel slurm 2>/dev/null || true
}

# remove_rest UNIT FILE...: what every role has beside its own.
remove_rest() {
  local unit=$1
  shift
  remove_users
  remove_home
  rm -f "$SLURM_KEY" "$@"
  remove_packages
  rm -rf /run/slurm "/var/lib/slurm/$unit" "/var/log/slurm/$unit.log"
  rmdir "$SLURM_FOLDER" /var/lib/slurm /var/log/slurm 2>/dev/null || true
  remove_state
  removed true
}

slurm_folders() {
  mkdir -p "$SLURM_FOLDER"
  install -d -o slurm -g slurm -m 0755 /var/lib/slurm /var/log/slurm "$@"
}

# write_key: the key that all daemons share; never readable by others, not for a moment.
write_key() {
  payload slurm_key | write_owned "$SLURM_KEY"
}

# write_owned PATH: atomically writes stdin to PATH, 0600 and of the user slurm.
write_owned() {
  local path=$1
  write_file "$path.busbar-new" 0600
  chown slurm:slurm "$path.busbar-new"
  if cmp -s "$path.busbar-new" "$path" && [[ $(stat -c '%a %U' "$path") == "600 slurm" ]]; then
    rm -f "$path.busbar-new"
  else
    mv -f "$path.busbar-new" "$path"
  fi
}

# start_unit UNIT TEXT: starts it, or restarts a running one that was started with other files, packages or values than
# TEXT tells.
start_unit() {
  local unit=$1 wanted action=start
  wanted=$(sha256sum <<<"$2")
  systemctl enable -q "$unit" 2>/dev/null || true
  if systemctl is-active --quiet "$unit"; then
    [[ $(cat "$STATE_DIR/$unit.started" 2>/dev/null) != "$wanted" ]] || return 0
    action=restart
  fi
  rm -f "$STATE_DIR/$unit.started"
  systemctl daemon-reload
  systemctl reset-failed "$unit" 2>/dev/null || true
  case "$action $unit" in
    "restart slurmd") hold_down "$NODE_NAME" ;;
    "restart slurmctld") hold_down ;;
  esac || note "slurmctld does not tell who has set nodes down; such a node starts jobs after the restart: sinfo -R"
  timeout "$UNIT_DEADLINE" systemctl "$action" "$unit" ||
    die "$unit did not $action: $(last_lines "$unit")" "see: journalctl -u $unit; tail /var/log/slurm/$unit.log"
  printf '%s\n' "$wanted" >"$STATE_DIR/$unit.started"
}

# last_lines UNIT: its last errors, in one line.
last_lines() {
  { { tail -n 200 "/var/log/slurm/$1.log" 2>/dev/null || true; journalctl -u "$1" -n 50 -o cat 2>/dev/null || true; } |
    grep -E 'error|fatal' || true; } | tail -n 3 | cut -c1-300 | paste -sd '|' - | sed 's/|/; /g'
}

# is_set_down STATE REASON: whether somebody has set it down; slurmctld does so itself where the node is not responding.
is_set_down() {
  [[ $1 == DOWN* && -n $2 && ${2##* [} != slurm@* ]]
}

# responds STATE: whether the slurmd of a node in this state answers slurmctld.
responds() {
  [[ -n $1 && $1 != *@(NOT_RESPONDING|UNKNOWN|"*")* ]]
}

# "NODE REASON" of nodes that somebody has set down. The registration that follows a restart ends that (ReturnToService).
HELD=()

# hold_down [NODE]: drains them before that, so that no job starts there. The drain stays: its end would make slurmctld ask the
# node, whose answer ends DOWN too. Fails where slurmctld does not tell them.
hold_down() {
  local node reason shown
  shown=$(timeout 30 scontrol --oneliner show node "$@" 2>&1) || [[ $shown == *"not found"* ]] || return 1
  for node in $(printf '%s\n' "$shown" | sed -n '/ State=DOWN/s/^NodeName=\([^ ]*\) .*/\1/p'); do
    { responds "$(node_field State "$node")" && is_set_down DOWN "$(node_field Reason "$node")"; } || continue
    reason=$(timeout 10 sinfo -h -N -n "$node" -o %E | head -n 1)
    HELD+=("$node $reason")
    scontrol update "nodename=$node" state=drain "reason=$reason" || die "$node is set down, and cannot be drained" "see: scontrol show node $node"
  done
}

# set_down: sets them down again when they have registered.
set_down() {
  local each deadline=$((SECONDS + 30))
  for each in "${HELD[@]}"; do
    poll "$((deadline - SECONDS))" has_registered "${each%% *}" || true
    if poll 20 stays_down "${each%% *}" "${each#* }"; then note "${each%% *} stays down: ${each#* }"; else note "${each%% *} stays drained: ${each#* }"; fi
  done
}

has_registered() {
  local state
  state=$(node_field State "$1")
  responds "$state" && [[ $state != DOWN* ]]
}

# stays_down NODE REASON: an answer that slurmctld still waits for ends DOWN as a registration does.
stays_down() {
  scontrol update "nodename=$1" state=down "reason=$2" && sleep 2 && [[ $(node_field State "$1") == DOWN* ]]
}

# node_field NAME [NODE]: of this node, or of another; empty where slurmctld does not know it, or is not responding.
node_field() {
  field "$1" "$(timeout 10 scontrol --oneliner show node "${2:-$NODE_NAME}" 2>/dev/null || true)"
}

# read_node NODE: sets STATE (empty for a node that slurmctld does not know) and FOUND, its reason with Slurm's [USER@TIME], which
# stays with a node after its drain has ended.
read_node() {
  local shown
  shown=$(TZ=UTC timeout 10 scontrol show node "$1" 2>&1) || [[ $shown == *"not found"* ]] ||
    die "slurmctld does not tell the state of $1: $shown" "see: systemctl status slurmctld; busbar verify STACK"
  # shellcheck disable=SC2034 # read by the other scripts
  STATE=$(sed -n 's/^ *State=\([^ ]*\).*/\1/p' <<<"$shown") FOUND=$(sed -n 's/^ *Reason=//p' <<<"$shown")
}

remove_unit() {
  stop_unit "$1"
  rm -rf "/etc/systemd/system/$1.service.d/busbar.conf"
  rmdir "/etc/systemd/system/$1.service.d" 2>/dev/null || true
  systemctl daemon-reload
}
