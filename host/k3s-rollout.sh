#!/usr/bin/env bash
# Running agents of a pool restart a few at a time (pools.NAME.max_unavailable). Before it restarts, an agent takes a
# turn: a ConfigMap in the cluster, made with the rights of its kubelet (k3s-nodes.sh grants them and notes the limits).
# The turn ends when the Node is Ready again. An agent that does not come back keeps it, so that the others stay as they
# are. An agent that does not run takes none: a bring-up is not slowed down.
#
# Values: TURN_SECONDS (how long an agent waits for its turn).

ROLLOUT=busbar-rollout
TURN_FILE=$STATE_DIR/turn

# rollout ARGUMENTS...: kubectl in the namespace of the turns, with the rights of the kubelet.
rollout() {
  timeout 30 "$K3S" kubectl --kubeconfig "$KUBELET_KUBECONFIG" -n "$ROLLOUT" "$@"
}

# take_turn: returns when this agent may restart. A Node that is not Ready is unavailable already: it takes no turn.
take_turn() {
  local pool="" limit="" jobs="" held others deadline=$((SECONDS + TURN_SECONDS)) looks=0
  poll 20 k3s_node_has "$KUBELET_KUBECONFIG" Ready=True || return 0
  end_turn
  read -r pool limit jobs < <(rollout get configmap workers -o 'jsonpath={.data.workers}' |
    awk -v node="$NODE_NAME" '$1 == node { print $2, $3, $4 }') || true
  [[ -n $limit ]] ||
    die "ConfigMap $ROLLOUT/workers does not list $NODE_NAME; its agent was not restarted" "retry: the update writes it"
  [[ $jobs == keep ]] || await_jobs
  while :; do
    # Lines "NAME NODE" of the agents that restart now, or did not come back.
    held=$(rollout get configmaps -l "busbar/pool=$pool" -o 'jsonpath={range .items[*]}{.metadata.name} {.data.node}{"\n"}{end}') &&
      if begin_turn; then return; fi
    others=$(cut -d' ' -f2 <<<"$held" | paste -sd ' ')
    ((SECONDS < deadline)) ||
      die "no turn to restart within $TURN_SECONDS s; $limit of pool $pool may restart at the same time, now: $others" \
        "repair these workers (busbar verify STACK), then retry"
    # A connection that broke ends the script at the next note.
    ((looks++ % 10)) || note "waits for its turn to restart, after $others"
    sleep 3
  done
}

# await_jobs: pods keep running while the agent restarts; the configuration (running_jobs) may want no job to run all the
# same. Without an answer of the API a job may run.
await_jobs() {
  local running looks=0
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
    "$name" "$pool" "$NODE_NAME" | rollout create -f - 2>&1) && return
  rm -f "$TURN_FILE"
  [[ $why != *orbidden* ]] || die "the kubelet may not take a turn to restart: $why" "retry: the update grants it"
  return 1
}

# end_turn: lets the next agent restart.
end_turn() {
  [[ ! -e $TURN_FILE ]] || poll 60 delete_turn "$(<"$TURN_FILE")" ||
    die "ending turn $(<"$TURN_FILE") failed" "retry"
  rm -f "$TURN_FILE"
}

# delete_turn NAME: unless it belongs to another worker.
delete_turn() {
  local holder
  holder=$(rollout get configmap "$1" --ignore-not-found -o 'jsonpath={.data.node}') || return 1
  [[ $holder != "$NODE_NAME" ]] || rollout delete configmap "$1" --ignore-not-found --wait=false >&2
}
