#!/usr/bin/env bash
# Functions of rotations (k3s.rotate): what is due, and certificates. Each kind has a number: ROTATE_<KIND> is the configured
# one, 0 without it, and STATE_DIR/rotated has the one that was done here. A higher number is due. A new installation notes
# its numbers.

ROTATION_KINDS=(certificates encryption_key server_token agent_token)

# rotation_wanted KIND
rotation_wanted() {
  local value=ROTATE_${1^^}
  printf '%s' "${!value:-0}"
}

# rotation_done KIND: 0 where it never was.
rotation_done() {
  local number
  number=$(sed -n "s/^$1 //p" "$STATE_DIR/rotated" 2>/dev/null || true)
  printf '%s' "${number:-0}"
}

rotation_is_due() {
  (($(rotation_wanted "$1") > $(rotation_done "$1")))
}

# record_rotation KIND NUMBER
record_rotation() {
  { grep -v "^$1 " "$STATE_DIR/rotated" 2>/dev/null || true; printf '%s %s\n' "$1" "$2"; } | write_file "$STATE_DIR/rotated" 0600
}

refuse_lower_rotation() {
  local kind
  for kind in "${ROTATION_KINDS[@]}"; do
    (($(rotation_wanted "$kind") >= $(rotation_done "$kind"))) ||
      die "k3s.rotate.$kind is $(rotation_wanted "$kind"), but $(rotation_done "$kind") is done here; no changes made" \
        "set it to $(rotation_done "$kind"), or to a higher number to rotate again"
  done
}

# rotate_certificates_at_start UNIT: K3s has to be stopped meanwhile. systemd does it between stop and start, so that a
# script that is killed leaves no stopped K3s; the flag makes it happen once, also if K3s then crashes.
rotate_certificates_at_start() {
  local flag=$STATE_DIR/rotate-certificates
  note "certificates are rotated when $1 restarts; the authorities stay"
  touch "$flag"
  write_file "/run/systemd/system/$1.service.d/90-busbar-rotate.conf" 0644 <<END
[Service]
ExecStartPre=/bin/sh -c 'test ! -e $flag || { $K3S certificate rotate && rm -f $flag; }'
END
  rm -f "$STATE_DIR/$1.sha256"
}

# certificates_are_rotated UNIT: after the start.
certificates_are_rotated() {
  [[ ! -e $STATE_DIR/rotate-certificates ]] ||
    die "$1 runs, but its certificates were not rotated ($STATE_DIR/rotate-certificates exists)" \
      "see: journalctl -u $1; then retry"
  rm -f "/run/systemd/system/$1.service.d/90-busbar-rotate.conf"
  systemctl daemon-reload
  record_rotation certificates "$(rotation_wanted certificates)"
}
