#!/usr/bin/env bash
# slurmctld, which serves its configuration to all other hosts (configless).
# VERB=install: slurmctld runs with this configuration. VERB=remove: removed; jobs are cancelled by that.
#
# Values: OWNER, INSTALL_ID, NODE_NAME, CANCEL_JOBS (of nodes that are removed), DRAIN_SECONDS, KEEP_DATA.
# Payload: slurm_key (secret), slurm_conf, cgroup_conf, gres_conf, topology_conf and plugstack_conf (may be empty), quarantine (lines "NODE REASON"),
# and those of accounting.sh and users.sh; values also those of slurm-lib.sh and home.sh.
# Facts: {"node","slurmctld"} (its version)
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/../../../host/parts.sh" lib lib-install owner packages slurm-fields slurm/slurm-lib slurm/home slurm/users slurm/accounting

CONFIG_FILES=("$SLURM_FOLDER"/{slurm,cgroup,gres,topology,plugstack}.conf)
STATE_SAVE=/var/lib/slurm/slurmctld
PING_DEADLINE=60
DRAIN_REASON="busbar: removed"
QUARANTINE_REASON="busbar: quarantine:"
# Lines "NODE REASON" of the drains that busbar has set, each with Slurm's "[USER@TIME]".
DRAINS=$STATE_DIR/drains
# The texts of CONFIG_FILES before, and now (empty: no such file). For undo also the nodes that were drained to be removed.
FORMER=()
TEXTS=()
REMOVING=()
# Not empty when slurmctld may have read, or been started with, the new files.
LOADED=
# "NAME KEY=WRITTEN KEY=SET" of partitions that somebody has closed or limited since slurm.conf was written; "NAME - KEY=SET" of LIMITS.
PARTITIONS=()
# Limits of a partition that busbar does not write, with Slurm's defaults.
LIMITS=(AllowGroups=ALL AllowAccounts=ALL DenyAccounts= AllowQos=ALL DenyQos= AllocNodes=ALL QoS=N/A MaxNodes=UNLIMITED RootOnly=NO ReqResv=NO)
# The partitions that slurmctld has and the new slurm.conf lacks.
LOST=()

main() {
  begin
  acquire_lock
  case $VERB in
    install) install_controller ;;
    remove) remove_controller ;;
    *) die "VERB=$VERB is unknown" "use install or remove" ;;
  esac
}

install_controller() {
  claim_host "Slurm controller"
  remember_user
  # In Slurm's order: no daemon may be newer than the one above it.
  [[ -z $(payload slurmdbd_conf) ]] || install_accounting
  install_slurm slurmctld client
  check_config
  slurm_folders "$STATE_SAVE"
  apply_home
  start_to_ask
  read_texts
  read_partitions
  trap undo EXIT
  drain_removed
  refuse_lost_partitions
  write_key
  load "${TEXTS[@]}"
  trap - EXIT
  [[ -n $(payload slurmdbd_conf) ]] || stop_accounting
  refuse_users_with_jobs
  apply_users
  await_containers
  apply_quarantine
  record_applied "$SLURM_KEY" "${CONFIG_FILES[@]}"
  printf '{"node":%s,"slurmctld":%s}\n' "$(json "$NODE_NAME")" "$(json "$(slurm_version slurmctld)")"
}

# check_config: Slurm's own parser reads the new slurm.conf before anything is changed: with one that it refuses no command of Slurm
# would work. slurmctld checks the rest when it is told to read it (load). Sets CONF: the text with an MpiDefault that srun lists.
check_config() {
  local file=$STATE_DIR/slurm.conf.new said
  CONF=$(payload slurm_conf)
  write_file "$file" 0644 <<<"$CONF"
  said=$(SLURM_CONF=$file timeout 30 scontrol show hostnames localhost 2>&1 >/dev/null) ||
    die "Slurm refuses the new slurm.conf, and no file or node was changed: $(grep error <<<"$said" | paste -sd ';' - || true)" \
      "correct what it names in the stack file (parameters, partitions) and retry"
  SLURM_CONF=$file timeout 30 srun --mpi=list 2>&1 | grep -E '(^|[[:space:]])pmix$' >/dev/null ||
    CONF=${CONF/$'\nMpiDefault=pmix # where srun lists it'/$'\nMpiDefault=pmi2'}
  rm -f "$file"
}

# read_texts: sets FORMER and TEXTS.
read_texts() {
  local index file
  for index in "${!CONFIG_FILES[@]}"; do
    file=${CONFIG_FILES[$index]}
    FORMER+=("$(cat "$file" 2>/dev/null || true)") TEXTS+=("$(payload "$(basename "$file" .conf)_conf")")
  done
  TEXTS[0]=$CONF
  [[ -n ${TEXTS[4]} ]] || plugstack_is_ours || TEXTS[4]=${FORMER[4]}
}

# plugstack_is_ours: Slurm's packages have one too, and a site may.
plugstack_is_ours() {
  grep -qs "^# Written by busbar" "${CONFIG_FILES[4]}"
}

write_configs() { # TEXT of each
  local index texts=("$@")
  for index in "${!texts[@]}"; do
    if [[ -n ${texts[$index]} ]]; then write_file "${CONFIG_FILES[$index]}" 0644 <<<"${texts[$index]}"; else rm -f "${CONFIG_FILES[$index]}"; fi
  done
}

read_partitions() {
  local line name now written shown limit
  [[ -e ${CONFIG_FILES[0]} ]] || return 0
  shown=$(timeout 30 scontrol --oneliner show partition 2>&1) || {
    ! systemctl is-active --quiet slurmctld || die "slurmctld does not tell its partitions: $shown" \
      "retry; where it never does (journalctl -u slurmctld): systemctl stop slurmctld, which lets go of what was set by hand; then retry"
    return 0
  }
  while read -r line; do
    name=$(field PartitionName "$line") now=$(field State "$line")
    [[ -n $name ]] || continue
    grep -q "^PartitionName=$name " <<<"$CONF" || LOST+=("$name")
    [[ $now == UP ]] || PARTITIONS+=("$name State=UP State=$now")
    now=$(field MaxTime "$line") written=$(field MaxTime "$(grep "^PartitionName=$name " "${CONFIG_FILES[0]}" || true)")
    [[ -z $written || $now == "$written" ]] || PARTITIONS+=("$name MaxTime=$written MaxTime=$now")
    for limit in "${LIMITS[@]}"; do
      now=$(field "${limit%%=*}" "$line")
      [[ -z $now || $now == "${limit#*=}" ]] || PARTITIONS+=("$name - ${limit%%=*}=$now")
    done
  done <<<"$shown"
}

# refuse_lost_partitions: slurmctld that reads new files ends the jobs of partitions that are not there (its read_config.c), deletes
# their reservations (reservation.c), and nobody else knows a partition that was made by hand.
refuse_lost_partitions() {
  local name jobs shown reserved fix
  ! has_read "${TEXTS[@]}" || return 0
  for name in "${LOST[@]}"; do
    # A heterogeneous job that waits can be cancelled as a whole only.
    jobs=$(timeout 30 squeue -h -p "$name" -o %i | sed 's/[+_].*//' | sort -u | paste -sd, -) ||
      die "slurmctld does not tell the jobs in partition $name, which is not in the configuration; it stays" "see: systemctl status slurmctld; retry"
    shown=$(timeout 30 scontrol --oneliner show reservation 2>&1) ||
      die "slurmctld does not tell its reservations: $shown" "see: systemctl status slurmctld; retry"
    reserved=$(sed -n "/ PartitionName=$name /s/^ReservationName=\([^ ]*\) .*/\1/p" <<<"$shown" | paste -sd, -)
    [[ -n $jobs$reserved ]] || ! grep -q "^PartitionName=$name " <<<"${FORMER[0]}" || continue
    fix="${jobs:+wait for its jobs or scancel ${jobs//,/ }; }${reserved:+scontrol update reservationname=NAME partition=OTHER; }"
    die "partition $name is not in the configuration, and slurmctld would forget it${jobs:+ and end its jobs $jobs}${reserved:+ and delete the reservations $reserved}; it stays" \
      "list it in partitions of the stack file; or ${fix}scontrol delete partitionname=$name; then retry"
  done
}

# held TEXT: slurm.conf as slurmctld reads it: no waiting job starts where somebody has closed a partition. KeepPartState does that
# for State, and not at a restart. Another limit in the stack file holds.
held() {
  local each name written set text=$1
  for each in "${PARTITIONS[@]}"; do
    read -r name written set <<<"$each"
    # A line without the key gets it at its end.
    if [[ $written == - ]]; then written="()\$"; else written=" $written( |\$)"; fi
    text=$(sed -E "/^PartitionName=$name /s/$written/ $set\\1/" <<<"$text")
    note "partition $name keeps $set, which was set by hand"
  done
  printf '%s' "$text"
}

# has_read TEXT...: whether slurmctld has read files with these texts last. One that somebody has changed since may have been read.
has_read() {
  [[ $* == "${FORMER[*]}" && $(cat "$STATE_DIR/config.loaded" 2>/dev/null) == "$(texts_hash "$@")" ]]
}

texts_hash() {
  local text
  for text; do [[ -z $text ]] || printf '%s\n' "$text"; done | sha256sum
}

# undo: the end of a run whose configuration, or removal of nodes, was refused. The former files are put back, slurmctld runs
# with them, and the nodes that stay take jobs again.
undo() {
  trap - ERR
  set +e
  local node
  # It may have taken the new ones all the same, or have stopped. Else it reads nothing: it would forget partitions made by hand.
  [[ -z $LOADED || -z ${FORMER[0]} ]] || (load "${FORMER[@]}") || {
    note "slurmctld does not run with the former configuration; see: journalctl -u slurmctld"
    (set_down)
  }
  write_configs "${FORMER[@]}"
  # In a subshell: one that cannot be asked keeps no other from its jobs.
  for node in "${REMOVING[@]}"; do (release "$node"); done
}

# load TEXT...: a running slurmctld reads changed files itself and passes them on; jobs and daemons go on. Only another key or
# package needs a restart.
load() {
  LOADED=true
  write_configs "$(held "$1")" "${@:2}"
  if systemctl is-active --quiet slurmctld && ! has_read "$@"; then
    hold_down || die "slurmctld does not tell which nodes are set down, and would start jobs there" "see: journalctl -u slurmctld; retry"
    rm -f "$STATE_DIR/config.loaded"
    timeout 60 scontrol reconfigure >&2 ||
      die "slurmctld refuses the new configuration and runs on with the former one, which was put back: $(last_lines slurmctld)" \
        "correct what its last error names, in the stack file (parameters, partitions), and retry"
  fi
  start_unit slurmctld "$(sha256sum "$SLURM_KEY") $(slurm_version slurmctld)"
  poll "$PING_DEADLINE" answers ||
    die "slurmctld is not responding after $PING_DEADLINE s: $(last_lines slurmctld)" "see: journalctl -u slurmctld"
  set_down
  write_configs "$1"
  texts_hash "$@" >"$STATE_DIR/config.loaded"
}

# drain_removed: nodes that are no longer configured start no new job, and their jobs are waited for, or cancelled.
drain_removed() {
  local node removed before
  # Where it has run, start_to_ask has seen that it answers.
  [[ -e $STATE_SAVE/clustername ]] || answers || return 0
  removed=$(unlisted NodeName)
  for node in $removed; do
    before=$(drain_of "$node")
    drain "$node" "$DRAIN_REASON"
    [[ $(drain_of "$node") == "$before" && $before != "$DRAIN_REASON "* ]] || REMOVING+=("$node")
  done
  for node in $removed; do await_jobs "$node"; done
}

# start_to_ask: a slurmctld that has run tells which jobs a removed node or partition has. Started without it, it would forget them.
start_to_ask() {
  local removed
  removed=$(unlisted NodeName; unlisted PartitionName)
  [[ -n $removed && -e $STATE_SAVE/clustername ]] && ! answers || return 0
  { timeout "$UNIT_DEADLINE" systemctl start slurmctld && poll "$PING_DEADLINE" answers; } ||
    die "slurmctld is not responding, and ${removed//$'\n'/, } is no longer configured; it stays" \
      "see: journalctl -u slurmctld; retry when it runs, or list it again"
}

# unlisted KEY: NodeName or PartitionName.
unlisted() {
  [[ ! -e $SLURM_FOLDER/slurm.conf ]] || comm -13 <(payload slurm_conf | names_of "$1") <(names_of "$1" <"$SLURM_FOLDER/slurm.conf")
}

names_of() {
  sed -n "s/^$1=\([^ ]*\) .*/\1/p" | sort
}

await_jobs() {
  local node=$1
  read_node "$node"
  [[ -n $STATE ]] || return 0
  [[ -z $(jobs_on "$node") ]] || note "$node: waiting for jobs $(jobs_on "$node")"
  [[ $CANCEL_JOBS != true ]] || scancel "--nodelist=$node" >&2 || true
  poll "$DRAIN_SECONDS" idle "$node" || {
    local jobs fix
    jobs=$(jobs_on "$node") ||
      die "slurmctld does not tell the jobs on $node, which is no longer configured; it stays" "see: systemctl status slurmctld; retry"
    fix="raise removal.timeout_seconds, or cancel them: scancel ${jobs//,/ }"
    # Their processes do not end: scancel would do nothing.
    [[ $(jobs_on "$node" completing) != "$jobs" ]] ||
      fix="scontrol update nodename=$node state=down reason=completing; reboot $node; then retry"
    die "$node is no longer configured, and jobs $jobs run on it; it stays" "$fix"
  }
}

# jobs_on NODE [STATE]: comma-separated, in any state: `-t running` leaves out those that are also configuring or stopped.
jobs_on() {
  timeout 30 squeue -h -w "$1" ${2:+-t "$2"} -o %i | sort -u | paste -sd, -
}

# idle NODE: without an answer it is not.
idle() {
  local jobs
  jobs=$(jobs_on "$1") && [[ -z $jobs ]]
}

# refuse_users_with_jobs: the other hosts follow the controller, so the users that go have not been deleted anywhere yet.
refuse_users_with_jobs() {
  local name jobs
  for name in $(unwanted_users); do
    id -u "$name" >/dev/null 2>&1 || continue
    jobs=$(timeout 30 squeue -h -u "$name" -o %i | sort -u | paste -sd, -)
    [[ -z $jobs ]] || die "user $name is no longer configured, and has jobs $jobs; it was not deleted on any host" \
      "wait for them, or cancel them: scancel -u $name; then retry"
  done
}

# apply_quarantine: drains what the configuration puts in quarantine, and ends what is left of busbar's other drains.
apply_quarantine() {
  local node reason wanted
  wanted=$(payload quarantine)
  while read -r node reason; do
    [[ -z $node ]] || drain "$node" "$QUARANTINE_REASON $reason"
  done <<<"$wanted"
  for node in $(cut -d ' ' -f 1 "$DRAINS" 2>/dev/null || true); do
    grep -q "^$node " <<<"$wanted" || release "$node"
  done
}

# drain NODE REASON: no job starts there. A drain that somebody else has set stays, with its reason.
drain() {
  local node=$1 wanted=$2 text
  read_node "$node"
  text=${FOUND% \[*}
  if [[ $STATE == *@(DRAIN|FAIL)* ]]; then
    # One of a run that was killed before it could note it.
    [[ $text != "$wanted"?(" : Not responding") || -n $(drain_of "$node") ]] || set_drain_of "$node" "$FOUND"
    is_ours "$node" || {
      note "$node is drained already, and stays so: $FOUND"
      return 0
    }
    # A node that is removed stays in its quarantine: the removal may be refused.
    [[ $wanted == "$QUARANTINE_REASON"* && $text == "busbar: "* && $text != "$wanted"?(" : "*) ]] || return 0
  elif is_set_down "$STATE" "$FOUND"; then
    wanted=$text
  elif [[ -z $STATE ]]; then
    return 0
  fi
  scontrol update "nodename=$node" state=drain "reason=$wanted" ||
    die "$node cannot be drained" "see: scontrol show node $node"
  read_node "$node"
  set_drain_of "$node" "$FOUND"
}

# release NODE: ends busbar's drain of it, and no other.
release() {
  read_node "$1"
  if [[ $STATE == *DRAIN* ]] && ! is_ours "$1"; then
    note "$1 stays drained: $FOUND"
  elif [[ $STATE == *DRAIN* ]]; then
    scontrol update "nodename=$1" state=undrain || {
      note "$1 could not be resumed; see: scontrol show node $1"
      return 0
    }
  fi
  set_drain_of "$1" ""
}

# is_ours NODE: whether the reason that read_node found is the one that busbar has set. slurmctld adds its words to it.
is_ours() {
  local ours
  ours=$(drain_of "$1")
  [[ -n $ours && ($FOUND == "$ours" || ($FOUND == "${ours% \[*} : "* && ${FOUND##* [} == slurm@*)) ]]
}

# drain_of NODE, set_drain_of NODE REASON: its line in DRAINS; none with an empty reason.
drain_of() {
  sed -n "s/^$1 //p" "$DRAINS" 2>/dev/null || true
}

set_drain_of() {
  { grep -v "^$1 " "$DRAINS" 2>/dev/null || true; [[ -z $2 ]] || printf '%s %s\n' "$1" "$2"; } | write_file "$DRAINS" 0600
}

remove_controller() {
  may_remove || return 0
  remove_unit slurmctld
  remove_accounting
  plugstack_is_ours || unset "CONFIG_FILES[4]"
  remove_rest slurmctld "${CONFIG_FILES[@]}"
}

main
