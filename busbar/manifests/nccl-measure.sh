#!/usr/bin/env bash
# Measures one collective after the other. One that fails does not stop the next one; the exit code is that of the last one that
# failed. It follows nccl-launcher.sh or nccl-sbatch.sh, whose `run_collective` takes the words of one of COLLECTIVES.
#
# Values: COLLECTIVES (each with arguments of its own), MEASURE_SECONDS (for all of them).

# measure COLLECTIVE ARGUMENTS...
measure() {
  local code=0 left=$((MEASURE_SECONDS > SECONDS ? MEASURE_SECONDS - SECONDS : 1))
  echo "# busbar: measuring $1"
  run_collective "$left" "$@" || code=$?
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
