#!/usr/bin/env bash
# Loads what a script consists of, for a run by hand: source parts.sh NAME... Busbar sends all parts in one text, which it reads
# from the same words (busbar/hosts/scripts.py).

for part; do
  # CAPABILITY/PART is one of a capability.
  [[ $part != */* ]] || part=../stacks/${part%/*}/host/${part#*/}
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done
