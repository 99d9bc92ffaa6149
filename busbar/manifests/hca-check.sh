#!/bin/sh
# Ends a container that has fewer HCAs than its device plugin has promised (PCIDEVICE_...): the plugin looks for them once, at its
# start. More are no error: with nvidia_fs a pod gets all HCAs.
set -- /dev/infiniband/uverbs*
[ -e "$1" ] || set --
devices=$# promised=0 missing=
for hca in $(env | sed -n '/^PCIDEVICE_[^=]*_INFO=/d; s/^PCIDEVICE_[^=]*=//p' | tr , ' '); do
  promised=$((promised + 1))
  set -- /sys/bus/pci/devices/"$hca"/infiniband_verbs/*
  [ -e "/dev/infiniband/${1##*/}" ] || missing="$missing $hca"
done
if [ "$devices" -lt "$promised" ]; then
  echo "node $BUSBAR_NODE: $devices of $promised HCAs have a device in the pod, missing:$missing. Fix:" \
    "repair them, or restart the device plugin, which then offers what is there: kubectl -n" \
    "nvidia-network-operator delete pod -l app=sriovdp --field-selector spec.nodeName=$BUSBAR_NODE" |
    tee /dev/termination-log
  exit 1
fi
