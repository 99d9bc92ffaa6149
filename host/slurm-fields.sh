#!/usr/bin/env bash
# Functions that read what the commands of Slurm print.

# field NAME TEXT: the value of NAME=VALUE in a line of scontrol --oneliner; it ends before the next NAME=.
field() {
  sed -nE "s/^(.* )?$1=//p" <<<"$2" | sed -E 's/ [A-Za-z:/]+=.*//'
}

# drained_by_slurm REASON: whether it is slurmctld's own. slurmctld adds its words to a reason that is there already ("new fan : Not
# responding [slurm@...]" of a node that a person has drained), so it must also begin with its words (strings of Slurm 24.11.5).
drained_by_slurm() {
  [[ ${1##* [} == slurm@* && $1 == @(gres/|Low |Not responding|Node unexpectedly rebooted|Kill task failed|Prolog error|Epilog error|Duplicate jobid|batch job complete failure)* ]]
}
