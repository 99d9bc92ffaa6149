#!/bin/bash
# Runs at boot inside a host of the lab: systemd-nspawn mounts more read-only than a kubelet can live with.
set -euo pipefail

mount --make-rshared /
mount -o remount,bind,rw /proc/sys

# cgroup v1 (the file system's type tells): one mount a controller, each to be made writable.
if [[ $(stat -fc %T /sys/fs/cgroup) != cgroup2fs ]]; then
  for controller in /sys/fs/cgroup/*/; do
    mount -o remount,bind,rw "$controller"
  done
fi
