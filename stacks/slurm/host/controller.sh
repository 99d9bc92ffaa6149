#!/usr/bin/env bash
# slurmctld, which serves its configuration to all other hosts (configless).
# VERB=install: slurmctld runs with this configuration. VERB=remove: removed; jobs are cancelled by that.
#
# Values: OWNER, INSTALL_ID, NODE_NAME, RUNNING_JOBS (wait or refuse), DRAIN_SECONDS, KEEP_DATA.
# Payload: slurm_key (secret), slurm_conf, cgroup_conf, gres_conf, topology_conf and plugstack_conf (may be empty), quarantine (lines "NODE REASON"),
# and those of accounting.sh and users.sh; values also those of slurm-lib.sh and home.sh.
# Facts: {"node","slurmctld"} (its version)
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/../../../host/parts.sh" lib lib-install owner packages slurm/slurm-lib slurm/home slurm/users slurm/accounting

CONFIG_FILES=("$SLURM_FOLDER"/{slurm,cgroup,gres,topology,plugstack}.conf)
PING_DEADLINE=60
DRAIN_REASON="busbar: removed"
QUARANTINE_REASON="busbar: quarantine:"

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
  install_accounting
  install_slurm slurmctld client
  slurm_folders /var/lib/slurm/slurmctld
  apply_home
  apply_users
  drain_removed
  write_key
  local name
  for name in "${CONFIG_FILES[@]}"; do write_config "$(basename "$name" .conf)"; done
  load
  poll "$PING_DEADLINE" answers ||
    die "slurmctld does not answer after $PING_DEADLINE s: $(last_lines slurmctld)" "see: journalctl -u slurmctld"
  await_containers
  apply_quarantine
  record_applied "$SLURM_KEY" "${CONFIG_FILES[@]}"
  printf '{"node":%s,"slurmctld":%s}\n' "$(json "$NODE_NAME")" "$(json "$(slurm_version slurmctld)")"
}

# write_config NAME: NAME.conf, or none where it is empty.
write_config() {
  local text
  text=$(payload "$1_conf")
  if [[ -n $text ]]; then
    write_file "$SLURM_FOLDER/$1.conf" 0644 <<<"$text"
  else
    rm -f "$SLURM_FOLDER/$1.conf"
  fi
}

# load: a running slurmctld reads changed files itself and passes them on; jobs and daemons go on. Only another key or
# package needs a restart.
load() {
  local files
  # Some of them may be missing.
  files=$({ cat "${CONFIG_FILES[@]}" 2>/dev/null || true; } | sha256sum)
  if systemctl is-active --quiet slurmctld && [[ $(cat "$STATE_DIR/config.loaded" 2>/dev/null) != "$files" ]]; then
    rm -f "$STATE_DIR/config.loaded"
    timeout 60 scontrol reconfigure >&2 ||
      die "slurmctld refuses the new configuration and runs on with the old one: $(last_lines slurmctld)" \
        "see the log above; fix the configuration and retry"
  fi
  start_unit slurmctld "$(sha256sum "$SLURM_KEY") $(slurm_version slurmctld)"
  printf '%s\n' "$files" >"$STATE_DIR/config.loaded"
}

# drain_removed: nodes that are no longer configured start no new job, and their jobs are waited for, or refused.
drain_removed() {
  local node removed
  [[ -e $SLURM_FOLDER/slurm.conf ]] && answers || return 0
  removed=$(comm -13 <(payload slurm_conf | node_names) <(node_names <"$SLURM_FOLDER/slurm.conf"))
  for node in $removed; do
    scontrol update "nodename=$node" state=drain "reason=$DRAIN_REASON" ||
      die "$node cannot be drained" "see: scontrol show node $node"
  done
  for node in $removed; do await_jobs "$node" "$removed"; done
}

node_names() {
  sed -n 's/^NodeName=\([^ ]*\) .*/\1/p' | sort
}

await_jobs() {
  local node=$1 removed=$2 seconds=$DRAIN_SECONDS fix="set removal.running_jobs: wait, or cancel them"
  [[ $RUNNING_JOBS == wait ]] || seconds=0
  [[ $RUNNING_JOBS != wait ]] || fix="raise removal.timeout_seconds, or cancel them"
  [[ -z $(jobs_on "$node") ]] || note "$node: waiting for jobs $(jobs_on "$node")"
  poll "$seconds" idle "$node" || {
    local jobs
    jobs=$(jobs_on "$node")
    for node in $removed; do scontrol update "nodename=$node" state=resume || true; done
    die "$1 is no longer configured, and jobs $jobs run on it; it stays" "$fix: scancel ${jobs//,/ }"
  }
}

jobs_on() {
  squeue -h -w "$1" -t running,completing,suspended -o %i | sort -u | paste -sd, -
}

idle() {
  [[ -z $(jobs_on "$1") ]]
}

# apply_quarantine: drains what the configuration puts in quarantine, and ends only quarantines of busbar's.
apply_quarantine() {
  local node reason wanted
  wanted=$(payload quarantine)
  while read -r node reason; do
    [[ -n $node ]] || continue
    [[ $(node_reason "$node") == "$QUARANTINE_REASON $reason "* ]] ||
      scontrol update "nodename=$node" state=drain "reason=$QUARANTINE_REASON $reason" ||
      die "$node cannot be drained" "see: scontrol show node $node"
  done <<<"$wanted"
  for node in $(node_names <"$SLURM_FOLDER/slurm.conf"); do
    [[ $(node_reason "$node") == "$QUARANTINE_REASON"* ]] || continue
    grep -q "^$node " <<<"$wanted" || scontrol update "nodename=$node" state=resume ||
      note "$node could not be resumed; see: scontrol show node $node"
  done
}

node_reason() {
  field Reason "$(scontrol --oneliner show node "$1" 2>/dev/null || true)"
}

remove_controller() {
  may_remove || {
    removed false
    return
  }
  remove_unit slurmctld
  remove_accounting
  remove_rest slurmctld "${CONFIG_FILES[@]}"
}

main
