#!/usr/bin/env bash
# Measures one collective after the other in a job of Slurm. It follows nccl-sbatch.sh.
#
# Values: COLLECTIVES (each with arguments for env of its own), ARGUMENTS (of nccl-tests), MEASURE_SECONDS (for all collectives).
# shellcheck disable=SC2154 # run and rank are those of nccl-sbatch.sh

# measure COLLECTIVE ARGUMENTS...
measure() {
  local code=0
  echo "# busbar: measuring $1"
  timeout --kill-after=5 $((MEASURE_SECONDS > SECONDS ? MEASURE_SECONDS - SECONDS : 1)) \
    env "${@:2}" "${run[@]}" bash -c "$rank" busbar "$1" "${ARGUMENTS[@]}" || code=$?
  ((code != 124)) || echo "# busbar: $1 timed out: the limit for all collectives is $MEASURE_SECONDS s"
  echo "# busbar: $1 ended with exit code $code"
  ((code == 0)) || worst=$code
}

worst=0
for collective in "${COLLECTIVES[@]}"; do
  # shellcheck disable=SC2086 # words
  measure $collective
done
finish "$worst"
