#!/usr/bin/env bash
# `busbar drain` and `busbar uncordon` of one node, and the jobs that a destroy would end. It runs on the controller.
#
# VERB=jobs: END_JOBS (true: they are cancelled, and have ended). Facts {"jobs"} (comma-separated, of the whole cluster).
#
# Values of the others: NODE. Facts {"ours","state","reason","jobs"}; ours: whether the drain is one of `busbar drain`; jobs: comma-separated.
# VERB=drain: REASON, END_JOBS (true: cancel its jobs). A node that somebody else has drained or set down keeps its reason.
# VERB=uncordon: facts of before. A drain that is not ours stays.
# VERB=show: changes nothing.
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/../../../host/parts.sh" lib slurm-fields slurm/slurm-lib

# No update ends a drain with this reason: it is none of those that host/controller.sh notes.
COMMAND_REASON="busbar drain:"
# KillWait and UnkillableStepTimeout of slurm.conf are 30 and 60 s.
JOBS_DEADLINE=150

main() {
  begin
  [[ $VERB != jobs ]] || {
    all_jobs
    return
  }
  read_node "$NODE"
  [[ -n $STATE ]] || die "slurmctld does not know $NODE" "see: sinfo -N; busbar verify STACK"
  case $VERB in
    drain) drain_node ;;
    uncordon) uncordon_node ;;
    show) tell ;;
    *) die "VERB=$VERB is unknown" "use drain, uncordon or show" ;;
  esac
}

all_jobs() {
  local listed="" ids=() deadline=$((SECONDS + JOBS_DEADLINE))
  # Without its configuration slurmctld is not installed.
  while [[ -e $SLURM_FOLDER/slurm.conf ]]; do
    listed=$(timeout 30 squeue -h -o %A 2>&1 | sort -un | paste -sd, -) || {
      [[ $END_JOBS == true ]] || die "slurmctld does not tell which jobs there are: $listed" "see: systemctl status slurmctld"
      note "slurmctld cannot be asked for jobs: $listed"
      listed=""
    }
    [[ $END_JOBS == true && -n $listed ]] || break
    ((SECONDS < deadline)) || die "jobs $listed do not end" "see: sinfo; of a host that is gone: scontrol update nodename=NODE state=down reason=gone"
    ((${#ids[@]} > 0)) || {
      IFS=, read -ra ids <<<"$listed"
      scancel "${ids[@]}" >&2 || true
    }
    sleep 2
  done
  printf '{"jobs":%s}\n' "$(json "$listed")"
}

drain_node() {
  if is_ours || { [[ $STATE != *@(DRAIN|FAIL)* ]] && ! is_set_down "$STATE" "$FOUND"; }; then
    change drain "reason=$COMMAND_REASON $REASON"
    read_node "$NODE"
  fi
  [[ $END_JOBS != true || -z $(jobs) ]] || scancel "--nodelist=$NODE" >&2 ||
    die "jobs $(jobs) on $NODE cannot be cancelled" "scancel --nodelist=$NODE"
  tell
}

uncordon_node() {
  tell
  ! is_ours || change undrain
}

# tell: prints the facts that read_node has found.
tell() {
  local ours=false listed
  ! is_ours || ours=true
  listed=$(jobs) || die "slurmctld does not tell the jobs on $NODE" "see: systemctl status slurmctld; retry"
  printf '{"ours":%s,"state":%s,"reason":%s,"jobs":%s}\n' "$ours" "$(json "${STATE,,}")" "$(json "$FOUND")" "$(json "$listed")"
}

change() {
  scontrol update "nodename=$NODE" "state=$1" "${@:2}" >&2 || die "$NODE cannot be changed to $1" "see: scontrol show node $NODE"
}

is_ours() {
  [[ $STATE == *DRAIN* && $FOUND == "$COMMAND_REASON"* ]]
}

# jobs: those in any state: `-t running` leaves out those that are also configuring or stopped.
jobs() {
  timeout 30 squeue -h -w "$NODE" -o %i | sort -u | paste -sd, -
}

main
