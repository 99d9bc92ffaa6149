#!/bin/bash
# Runs at boot in a host of the lab: makes writable what systemd-nspawn mounts read-only and a kubelet writes.
set -euo pipefail

mount --make-rshared /
mount -o remount,bind,rw /proc/sys

# cgroup v1 (recognised by the file system's type) has one mount per controller.
if [[ $(stat -fc %T /sys/fs/cgroup) != cgroup2fs ]]; then
  for controller in /sys/fs/cgroup/*/; do
    mount -o remount,bind,rw "$controller"
  done
fi
