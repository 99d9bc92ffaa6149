#!/usr/bin/env bash
# HealthCheckProgram: compares what host/preflight-hardware.sh reports with the pool's numbers. It drains this node with a
# reason and resumes none: that is a person's decision. slurmd runs it on idle nodes; an installation puts the values above.
#
# Values: HEALTH_NODE, HEALTH_GPUS, HEALTH_RAILS, HEALTH_RATE (Gb/s), HEALTH_LINK_LAYER (InfiniBand or Ethernet),
# HEALTH_IGNORED (shell patterns of HCAs, separated by spaces), HEALTH_PEERMEM (true where GPUDirect RDMA is required).

health_reason() {
  local report rails=0 found
  report=$(gpus)
  found=$(grep -o '"model"' <<<"$report" | wc -l)
  if [[ $report != *'"status":"ok"'* ]]; then
    printf 'nvidia-smi fails'
  elif ((found < HEALTH_GPUS)); then
    printf '%s of %s GPUs' "$found" "$HEALTH_GPUS"
  elif rails=$(good_rails) && ((rails < HEALTH_RAILS)); then
    printf '%s of %s rails active at %s Gb/s' "$rails" "$HEALTH_RAILS" "$HEALTH_RATE"
  elif [[ $HEALTH_PEERMEM == true && $(gdr) != *true* ]]; then
    printf 'no nvidia-peermem'
  fi
}

# good_rails: the ports that are active at the rate, without those that are ignored.
good_rails() {
  local port name pattern count=0
  for port in "$INFINIBAND"/*/ports/*; do
    name=${port%/ports/*} name=${name##*/}
    [[ $(cat "$port/state" 2>/dev/null) == *ACTIVE && $(cat "$port/link_layer") == "$HEALTH_LINK_LAYER" ]] || continue
    (($(awk '{ print int($1) }' "$port/rate") >= HEALTH_RATE)) || continue
    for pattern in $HEALTH_IGNORED; do
      # shellcheck disable=SC2053 # a pattern
      [[ $name != $pattern ]] || continue 2
    done
    count=$((count + 1))
  done
  printf '%s' "$count"
}

main() {
  local reason node
  reason=$(health_reason)
  [[ -n $reason ]] || exit 0
  # Whoever has drained it already keeps the reason. One without a drain is that of an earlier drain.
  node=$(scontrol --oneliner show node "$HEALTH_NODE" 2>/dev/null) || exit 1
  [[ $node == *" State="*([^ ])@(DRAIN|FAIL|DOWN)* ]] ||
    scontrol update "nodename=$HEALTH_NODE" state=drain "reason=busbar health: $reason"
  exit 1
}

main
