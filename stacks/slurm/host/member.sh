#!/usr/bin/env bash
# A host that takes its configuration from slurmctld: compute (slurmd) or login (sackd). No file of Slurm's configuration is
# written here.
# VERB=install: slurmd is registered and IDLE (or drained, or set down, by somebody), or the commands reach the controller. VERB=remove:
# removed; logs and homes stay.
#
# Values: OWNER, INSTALL_ID, NODE_NAME, UNIT (slurmd or sackd), CONTROLLER (ADDRESS:PORT), GPUS (of a compute host), CANCEL_JOBS,
# CONTAINER_USER (who starts a container to see that users can; of a compute host with CONTAINERS), and those of slurm-lib.sh and home.sh.
# Payload: slurm_key (secret), health (the HealthCheckProgram; may be empty), and that of users.sh.
# Facts: {"node","version","state","gpus"} (the last two of a compute host)
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/../../../host/parts.sh" lib lib-install owner packages slurm-fields slurm/slurm-lib slurm/home slurm/users

HEALTH_PROGRAM=/usr/local/lib/busbar/slurm-health
READY_DEADLINE=120
STEPS_DEADLINE=120
DEVICES_DEADLINE=300

main() {
  begin
  acquire_lock
  case $VERB in
    install) install_member ;;
    remove) remove_member ;;
    *) die "VERB=$VERB is unknown" "use install or remove" ;;
  esac
}

install_member() {
  local state="" gpus=0
  claim_host "Slurm $UNIT host"
  remember_user
  install_slurm "$UNIT" client
  slurm_folders
  apply_home
  apply_users
  write_key
  configure_unit
  install_health
  # pyxis makes its folder when slurmd starts.
  start_unit "$UNIT" "$CONTROLLER $(sha256sum "$SLURM_KEY") $(slurm_version "$UNIT")${CONTAINERS:+ $(package_version nvslurm-plugin-pyxis)}"
  if [[ $UNIT == slurmd ]]; then
    await_ready
    set_down
    state=$(node_field State) gpus=$(gpu_count)
  else
    poll 60 answers ||
      die "the controller $CONTROLLER is not responding" "check port ${CONTROLLER##*:} from here; see: journalctl -u sackd"
  fi
  await_containers
  [[ $UNIT != slurmd || -z $CONTAINERS ]] || start_container
  record_applied "$SLURM_KEY" "/etc/systemd/system/$UNIT.service.d/busbar.conf" "$HEALTH_PROGRAM"
  printf '{"node":%s,"version":%s,"state":%s,"gpus":%s}\n' "$(json "$NODE_NAME")" "$(json "$(slurm_version "$UNIT")")" \
    "$(json "$state")" "$gpus"
}

# configure_unit: the options of the unit, in a drop-in. One that runs already goes on, and has them without a restart.
configure_unit() {
  local file=/etc/systemd/system/$UNIT.service.d/busbar.conf before
  before=$(cat "$file" 2>/dev/null || true)
  {
    printf '# Written by busbar\n'
    [[ $UNIT != slurmd ]] || printf '[Unit]\nAfter=nvidia-persistenced.service\n'
    printf '[Service]\nEnvironment="%s_OPTIONS=--conf-server %s"\nLimitMEMLOCK=infinity\nLimitNOFILE=1048576\nRestart=on-failure\nRestartSec=10\n' "${UNIT^^}" "$CONTROLLER"
    [[ $UNIT != slurmd ]] || wait_for_devices
  } | write_file "$file" 0644
  [[ -z $before || $(cat "$file") == "$before" ]] || systemctl daemon-reload
}

# wait_for_devices: at boot slurmd starts when the device files of its GPUs are there: it drains a node that has fewer than
# gres.conf. At the deadline it starts all the same, and Slurm says what is missing.
wait_for_devices() {
  printf 'TimeoutStartSec=%s\nExecStartPre=-/usr/bin/timeout %s ' "$((DEVICES_DEADLINE + 90))" "$DEVICES_DEADLINE"
  # shellcheck disable=SC2153 # a value
  printf "/bin/bash -c 'until ((\$\$(compgen -G \"/dev/nvidia[0-9]*\" | wc -l) >= %s)) || [[ \$\$(systemctl is-system-running) != @(initializing|starting) ]]; do sleep 1; done'\n" "$GPUS"
}

# start_container: a container starts as a user of the site. A kernel may keep user namespaces from users, and root has them.
# It has a shell of this host, and needs no place in the queue.
start_container() {
  local folder root file said
  folder=$(mktemp -d /var/lib/busbar-container.XXXXXX)
  root=$folder/check
  for file in /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*'); do install -D "$(readlink -f "$file")" "$root$file"; done
  mkdir -p "$root"/{dev,etc,proc,sys,tmp,var}
  chown -R "$CONTAINER_USER": "$folder"
  said=$(runuser -u "$CONTAINER_USER" -- env -C "$folder" HOME="$folder" ENROOT_DATA_PATH="$folder" ENROOT_RUNTIME_PATH="$folder/run" \
    timeout 60 enroot start check sh -c 'echo started' 2>&1) || true
  rm -rf "$folder"
  [[ $said == *started ]] || die "$CONTAINER_USER cannot start a container: ${said//$'\n'/; }" \
    "users need user namespaces: sysctl user.max_user_namespaces kernel.apparmor_restrict_unprivileged_userns (0, or enroot's AppArmor profile)"
}

install_health() {
  local text
  text=$(payload health)
  if [[ -n $text ]]; then write_file "$HEALTH_PROGRAM" 0755 <<<"$text"; else rm -f "$HEALTH_PROGRAM"; fi
}

# await_ready: the node has registered, with all its GPUs. A drain by slurmctld itself is what is wrong with the host: it is
# ended once, as after a repair, and comes back where it is not repaired. A drain by anyone else stays.
await_ready() {
  local reason state
  ! drained_by_slurm "$(node_field Reason)" || [[ $(node_field State) != *DRAIN* ]] ||
    scontrol update "nodename=$NODE_NAME" state=resume 2>/dev/null || true
  poll "$READY_DEADLINE" is_settled || true
  state=$(node_field State) reason=$(node_field Reason)
  if responds "$state" && is_set_down "$state" "$reason"; then
    note "the node is $state, and stays so: $reason"
    return 0
  fi
  case $state in
    "") die "slurmctld does not know $NODE_NAME or is not responding: $(last_lines slurmd)" \
      "check port ${CONTROLLER##*:} of the controller; the same slurm.key on both; journalctl -u slurmd" ;;
    *DOWN* | *UNKNOWN* | *NOT_RESPONDING* | *INVAL* | *"*"*)
      die "the node is $state${reason:+: $reason}; slurmd: $(last_lines slurmd)" \
        "check port 6818 of this host and the clocks; journalctl -u slurmd" ;;
    *DRAIN* | *FAIL*)
      if drained_by_slurm "$reason"; then
        die "the node is $state: $reason; slurmd: $(last_lines slurmd)" "repair what the reason names, and retry"
      elif [[ $reason == "busbar health:"* || (${reason##* [} == slurm@* && $reason != *" : Not responding ["*) ]]; then
        die "the node is $state: $reason; slurmd: $(last_lines slurmd)" \
          "repair what the reason names; then $HEALTH_PROGRAM && scontrol update nodename=$NODE_NAME state=resume"
      fi
      note "the node is $state, and stays so: $reason"
      ;;
  esac
  # shellcheck disable=SC2153 # a value
  [[ $(gpu_count) == "$GPUS" ]] ||
    die "the node has $(gpu_count) GPUs in Slurm, expected $GPUS" "see: scontrol show node $NODE_NAME; slurmd -G"
}

# is_settled: IDLE or at work; or drained by a registration, or set to FAIL or DOWN by somebody, which no time changes.
is_settled() {
  local state
  state=$(node_field State)
  [[ $state == @(IDLE|MIXED|ALLOCATED|COMPLETING)?(+DYNAMIC*|+COMPLETING|+PLANNED|+MAINTENANCE*|+RESERVED*) ]] ||
    { responds "$state" && { [[ $state == *@(DRAIN|FAIL)* && $state != *DOWN* ]] || is_set_down "$state" "$(node_field Reason)"; }; }
}

# gpu_count: from Gres=gpu:h100:8(S:0-1).
gpu_count() {
  local found
  found=$(node_field Gres)
  found=${found%%(*}
  found=${found##*:}
  printf '%s' "${found//[!0-9]/}"
}

# end_steps: a step outlives its slurmd, and nobody could see or end it then.
end_steps() {
  local seconds=0 fix="wait for their end, or set removal.cancel_jobs: true; then retry"
  [[ $CANCEL_JOBS != true ]] || {
    seconds=$STEPS_DEADLINE fix="reboot this host, which ends them; then retry"
    timeout 30 scancel "--nodelist=$NODE_NAME" >&2 || true
  }
  poll "$seconds" has_no_steps ||
    die "steps of jobs run here: $(steps); nothing was removed" "$fix"
}

has_no_steps() {
  [[ -z $(steps) ]]
}

# steps: JOB.STEP of each, from the titles of their processes.
steps() {
  { pgrep -a -f '^slurmstepd: \[' || true; } | sed 's/.*\[\(.*\)\]$/\1/' | sort | paste -sd ' ' -
}

remove_member() {
  may_remove || return 0
  [[ $UNIT != slurmd ]] || end_steps
  remove_unit "$UNIT"
  rm -f "$HEALTH_PROGRAM"
  rmdir "$(dirname "$HEALTH_PROGRAM")" 2>/dev/null || true
  remove_rest "$UNIT"
}

main
