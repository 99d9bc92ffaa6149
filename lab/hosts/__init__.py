"""The hosts of the lab: systemd-nspawn containers on a bridge of this machine."""
