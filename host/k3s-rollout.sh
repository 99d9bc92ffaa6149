#!/usr/bin/env bash
# Running agents of a pool restart a few at a time (pools.NAME.max_unavailable). Before it restarts, an agent takes a
# turn: a ConfigMap in the cluster, made with the rights of its kubelet (k3s-nodes.sh grants them and notes the limits).
# The turn ends when the Node has been Ready again for pools.NAME.pause_seconds. An agent that does not come back, or could
# not be drained, keeps it, so that the others stay as they are. An agent that does not run takes none: a bring-up is not
# slowed down.
#
# Values: TURN_SECONDS (how long an agent waits for its turn while the turns of the others do not change).

ROLLOUT=busbar-rollout
TURN_FILE=$STATE_DIR/turn

# rollout ARGUMENTS...: kubectl in the namespace of the turns, with the rights of the kubelet.
rollout() {
  timeout 30 "$K3S" kubectl --kubeconfig "$KUBELET_KUBECONFIG" -n "$ROLLOUT" "$@"
}

# take_turn: returns when this agent may restart, and the worker is drained if its pool wants that. A Node that is not
# Ready is unavailable already: it takes no turn, and nothing there can be drained.
take_turn() {
  local pool="" limit="" jobs="" drain="" drain_seconds=""
  poll 20 k3s_node_has "$KUBELET_KUBECONFIG" Ready=True || return 0
  # Of an update that was interrupted. A worker that waits for its turn takes the pods of those that are drained.
  poll 60 uncordon || die "uncordoning Node $NODE_NAME failed" "retry, or run: kubectl uncordon $NODE_NAME"
  end_turn
  read -r pool limit jobs drain drain_seconds PAUSE_SECONDS < <(rollout get configmap workers -o 'jsonpath={.data.workers}' |
    awk -v node="$NODE_NAME" '$1 == node { print $2, $3, $4, $5, $6, $7 }') || true
  [[ -n ${PAUSE_SECONDS:-} ]] ||
    die "ConfigMap $ROLLOUT/workers does not list $NODE_NAME; its agent was not restarted" "retry: the update writes it"
  [[ $jobs == keep ]] || await_jobs
  await_turn
  if wants_drain "$drain"; then drain_node "$pool" "$drain_seconds"; fi
}

# await_turn: the deadline begins anew whenever the turns of the others change.
await_turn() {
  local held="" first="" before="" failed others looks=0 answers=0
  local seconds=$((TURN_SECONDS + drain_seconds + PAUSE_SECONDS)) deadline
  deadline=$((SECONDS + seconds))
  while :; do
    # Lines "NAME NODE TIME" of the agents that restart now, or failed to at that time.
    if held=$(rollout get configmaps -l "busbar/pool=$pool" \
      -o 'jsonpath={range .items[*]}{.metadata.name} {.data.node} {.data.failed}{"\n"}{end}'); then
      ((answers++)) || first=$held
      # One that failed in an earlier update may be repaired by this one.
      failed=$(awk 'NR == FNR { known[$0] = 1; next } $3 != "" && !($0 in known) { print $2 }' <(echo "$first") <(echo "$held"))
      [[ -z $failed ]] ||
        die "${failed//$'\n'/ } failed in this update; no other agent of pool $pool restarts" \
          "see the error of that worker; fix the cause and retry"
      if begin_turn; then return; fi
      [[ $held == "$before" ]] || deadline=$((SECONDS + seconds))
      before=$held
    fi
    others=$(cut -d' ' -f2 <<<"$before" | paste -sd ' ')
    ((SECONDS < deadline)) ||
      die "no turn to restart within $seconds s; $limit of pool $pool may restart at the same time, now: $others" \
        "repair these workers (busbar verify STACK), then retry"
    # A connection that broke ends the script at the next note.
    ((looks++ % 10)) || note "waits for its turn to restart, after ${others:-another agent}"
    sleep 3
  done
}

# await_jobs: pods keep running while the agent restarts; the configuration (running_jobs) may want no job to run all the
# same. Without an answer of the API a job may run.
await_jobs() {
  local running looks=0 deadline=$((SECONDS + TURN_SECONDS))
  while running=$(running_jobs) || running="unknown, the API does not answer"; [[ -n $running ]]; do
    [[ $jobs == wait ]] ||
      die "jobs run here: $running; the agent was not restarted" "retry when they have ended, or set pools.$pool.running_jobs"
    ((SECONDS < deadline)) || die "jobs still run here after $TURN_SECONDS s: $running" "retry when they have ended"
    ((looks++ % 10)) || note "waits for the end of jobs: $running"
    sleep 3
  done
}

# running_jobs: NAMESPACE/NAME of the pods of jobs of any kind (Job, MPIJob) on this Node.
running_jobs() {
  timeout 30 "$K3S" kubectl --kubeconfig "$KUBELET_KUBECONFIG" get pods -A \
    --field-selector "spec.nodeName=$NODE_NAME,status.phase=Running" \
    -o 'jsonpath={range .items[*]}{.metadata.ownerReferences[0].kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}' |
    awk '$1 ~ /Job$/ { print $2 }' | paste -sd ' '
}

# begin_turn: takes a free turn. The API lets only one agent make an object of one name.
begin_turn() {
  local name why
  name=$(printf '%s' "${held:+$held$'\n'}" | awk -v pool="$pool" -v limit="$limit" '
    { is_held[$1] = 1 }
    END { if (NR < limit) { while (pool "-" number + 0 in is_held) number++; print pool "-" number + 0 } }')
  [[ -n $name ]] || return 1
  echo "$name" >"$TURN_FILE"
  why=$(printf '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s","labels":{"busbar/pool":"%s"}},"data":{"node":"%s"}}' \
    "$name" "$pool" "$NODE_NAME" | rollout create -f - 2>&1) && {
    trap fail_turn EXIT
    return
  }
  rm -f "$TURN_FILE"
  [[ $why != *orbidden* ]] || die "the kubelet may not take a turn to restart: $why" "retry: the update grants it"
  return 1
}

# fail_turn: notes that this agent failed, so that those that wait in this update end. The note on stderr, which
# components/rollout_stop.py looks for, comes last: the connection may be what broke.
fail_turn() {
  [[ -e $TURN_FILE ]] || return 0
  rollout patch configmap "$(<"$TURN_FILE")" --type merge -p '{"data":{"failed":"'"$(date +%s)"'"}}' >/dev/null 2>&1 || true
  note "failed during its turn to restart; the turn is kept until this worker is repaired"
}

# pause_turn: the next agent restarts when this Node has been Ready for pools.NAME.pause_seconds.
pause_turn() {
  local since=$SECONDS
  [[ -e $TURN_FILE ]] || return 0
  while ((SECONDS < since + ${PAUSE_SECONDS:-0})); do
    poll 60 k3s_node_has "$KUBELET_KUBECONFIG" Ready=True ||
      die "Node $NODE_NAME is not Ready any more, $((SECONDS - since)) s after its restart" "see: journalctl -u $UNIT"
    sleep 3
  done
}

# end_turn: lets the next agent restart.
end_turn() {
  [[ ! -e $TURN_FILE ]] || poll 60 delete_turn "$(<"$TURN_FILE")" ||
    die "ending turn $(<"$TURN_FILE") failed" "retry"
  rm -f "$TURN_FILE"
  trap - EXIT
}

# delete_turn NAME: unless it belongs to another worker.
delete_turn() {
  local holder
  holder=$(rollout get configmap "$1" --ignore-not-found -o 'jsonpath={.data.node}') || return 1
  [[ $holder != "$NODE_NAME" ]] || rollout delete configmap "$1" --ignore-not-found --wait=false >&2
}
