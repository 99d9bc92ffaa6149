#!/usr/bin/env bash
# The job of a measurement, and what Slurm says of it and of its nodes. All but read and daemon run on the controller.
#
# WITHIN (or unset): words of a command, such as `k3s kubectl exec -i -n slurm POD -c slurmd --`, which runs the question in a pod.
# VERB=nodes: facts {"nodes": {"NAME": {"state","reason","by"}}, "completing": {"NAME": ["JOB", SECONDS]}} (by: slurmctld where the
#   reason is its own, else the user; completing: the job that ended first of those whose processes have not, and how long ago).
# VERB=submit: JOB_NAME, PARTITION, NODES (comma-separated), COUNT, LOG; payload script. A job of this name that has not ended
#   is not submitted again. Facts {"job_id"}.
# VERB=status: JOB_ID; facts {"known","state","reason","batch_host","exit_code","restarts","submitted","nodes"} (nodes: why those
#   of the job are not usable).
# VERB=cancel: JOB_ID; facts {"job_id"}.
# VERB=read: LOG, OFFSET; facts {"data" (base64; empty without such a file),"free_bytes"}.
# VERB=daemon: on a compute host; facts {"active","boot"}: whether its slurmd runs, and the id of its boot.
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib slurm-fields

CHUNK_BYTES=1048576
COMMAND_SECONDS=30

main() {
  begin_verb nodes submit status cancel read daemon
  [[ -z ${WITHIN:-} ]] || ask_within
  "job_$VERB"
}

# ask_within: the pod needs bash, gzip and coreutils. This script is on stdin (busbar/hosts/scripts.py).
ask_within() {
  local name values=()
  for name in NODE_NAME VERB JOB_NAME PARTITION NODES COUNT LOG JOB_ID OFFSET; do
    [[ ! -v $name ]] || values+=("$name=${!name}")
  done
  # kubectl writes this after the error of the script, and the last line is what is reported.
  exec 2> >(sed '/^command terminated with exit code/d' >&2)
  # shellcheck disable=SC2086,SC2016,SC2153 # words; the shell in the pod expands this; a value
  exec $WITHIN env "${values[@]}" bash -c \
    'IFS= read -r PAYLOAD && IFS= read -r SCRIPT && eval "$(base64 -d <<<"$SCRIPT" | gzip -d)"' <<<"$PAYLOAD"$'\n'"$SCRIPT"
}

# asked COMMAND...: a command of Slurm, with a deadline.
asked() {
  timeout "$COMMAND_SECONDS" "$@" || die "$1 failed on the controller" "check slurmctld: systemctl status slurmctld; $*"
}

job_nodes() {
  local found late
  found=$(asked sinfo -h -N -o '%N|%T|%u|%E' | sort -u)
  late=$(completing)
  printf '{"nodes":{%s},"completing":{%s}}\n' "$(node_list <<<"$found")" "$late"
}

completing() {
  local found job nodes ended node list="" seen=" "
  found=$(asked squeue -h -S e -t completing -o '%i|%N|%e') || exit
  while IFS='|' read -r job nodes ended; do
    [[ $ended == [0-9]* ]] || continue
    nodes=$(asked scontrol show hostnames "$nodes") || exit
    for node in $nodes; do
      [[ $seen != *" $node "* ]] || continue
      seen+="$node "
      list+="${list:+,}$(json "$node"):[$(json "$job"),$(($(date +%s) - $(date -d "$ended" +%s)))]"
    done
  done <<<"$found"
  printf '%s' "$list"
}

# node_list: lines "NAME|STATE|USER|REASON" as members of an object.
node_list() {
  local name state user reason list="" seen=""
  while IFS='|' read -r name state user reason; do
    [[ -n $name && $seen != *" $name "* ]] || continue
    seen+=" $name "
    ! drained_by_slurm "$reason [$user@]" || user=slurmctld
    list+="${list:+,}$(json "$name"):{\"state\":$(json "$state"),\"reason\":$(json "${reason/#none/}"),\"by\":$(json "$user")}"
  done
  printf '%s' "$list"
}

job_submit() {
  local id script said
  id=$(asked squeue -h --me --name "$JOB_NAME" -t pending,configuring,running,suspended -o %i | sort -n | tail -n 1)
  script=$(payload script)
  if [[ -z $id ]]; then
    # shellcheck disable=SC2153 # a value
    said=$(timeout "$COMMAND_SECONDS" sbatch --parsable --chdir=/ --job-name="$JOB_NAME" --partition="$PARTITION" \
      --nodelist="$NODES" --nodes="$COUNT" --output="$LOG" <<<"$script" 2>&1) ||
      die "sbatch refuses the job: ${said##*$'\n'}" "see: sinfo; scontrol show partition $PARTITION"
    id=$(grep -oE '^[0-9]+' <<<"$said" | tail -n 1)
  fi
  printf '{"job_id":%s}\n' "$(json "$id")"
}

job_status() {
  local line nodes=""
  line=$(timeout "$COMMAND_SECONDS" scontrol --oneliner show job "$JOB_ID" 2>&1) || {
    [[ $line == *"Invalid job id"* ]] || die "slurmctld is not responding: $line" "see: systemctl status slurmctld"
    printf '{"known":false}\n'
    return
  }
  nodes=$(sinfo -h -N -t down,drain,fail,no_respond -o '%N|%T|%u|%E' 2>/dev/null | sort -u || true)
  printf '{"known":true,"state":%s,"reason":%s,"batch_host":%s' "$(json "$(field JobState "$line")")" \
    "$(json "$(field Reason "$line")")" "$(json "$(field BatchHost "$line")")"
  printf ',"exit_code":%s,"restarts":%s,"submitted":%s,"nodes":{%s}}\n' "$(json "$(field ExitCode "$line")")" \
    "$(json "$(field Restarts "$line")")" "$(json "$(date -u -d "$(field SubmitTime "$line")" +%Y-%m-%dT%H:%M:%SZ)")" \
    "$(node_list <<<"$nodes")"
}

job_cancel() {
  asked scancel "$JOB_ID" >&2
  printf '{"job_id":%s}\n' "$(json "$JOB_ID")"
}

job_read() {
  local free
  free=$(df -B1 --output=avail "$(dirname "$LOG")" 2>/dev/null | tail -n 1 || echo 0)
  printf '{"free_bytes":%s,"data":"' "${free// /}"
  [[ ! -f $LOG ]] || tail -c "+$((OFFSET + 1))" "$LOG" | head -c "$CHUNK_BYTES" | base64 -w 0
  printf '"}\n'
}

job_daemon() {
  printf '{"active":%s,"boot":%s}\n' "$(truth systemctl is-active --quiet slurmd)" "$(json "$(</proc/sys/kernel/random/boot_id)")"
}

main
