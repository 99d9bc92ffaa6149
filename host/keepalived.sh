#!/usr/bin/env bash
# keepalived on hosts that share an address by VRRP: load balancers, or servers without any.
#
# Values: VIRTUAL_IP (empty: keepalived is removed if busbar installed it). Payload: keepalived_conf.

KEEPALIVED=/etc/keepalived/keepalived.conf
# A new VRRP group waits some seconds for a master before it takes the address.
# shellcheck disable=SC2034 # read by the scripts of these hosts
VIRTUAL_IP_DEADLINE=30

refuse_foreign_keepalived() {
  [[ ! -s $KEEPALIVED ]] || is_ours "$KEEPALIVED" || ! systemctl is-active --quiet keepalived ||
    die "keepalived is already running on this host with a configuration of the site; not changed" \
      "use another host, or stop it: systemctl disable --now keepalived"
}

is_ours() {
  grep -qs '^# Written by busbar' "$1"
}

configure_keepalived() {
  # --config-test needs keepalived 2.0, which all supported operating systems have.
  configure_part keepalived "$KEEPALIVED" /dev/null keepalived --config-test -f
}

# configure_part UNIT FILE BESIDE CHECK...: the payload UNIT_(cfg or conf) is checked before it replaces FILE; a reload keeps
# connections. What is noted as loaded, with the file BESIDE it, is forgotten before: a run that broke off, or whose reload failed,
# reloads again.
configure_part() {
  local unit=$1 file=$2 beside=$3 new=$2.busbar-new noted=$STATE_DIR/$1.loaded loads
  keep_original "$unit" "$file"
  payload "${unit}_${file##*.}" | write_file "$new" 0644
  if ! "${@:4}" "$new" >&2; then
    rm -f "$new"
    die "$unit refuses the new configuration; the old one stays active" \
      "it names a line above: correct the key of the stack file from which that line comes, and retry"
  fi
  systemctl enable -q "$unit" 2>/dev/null || true
  loads=$(cat "$new" "$beside" | sha256sum)
  if cmp -s "$new" "$file" && [[ $(cat "$noted" 2>/dev/null) == "$loads" ]] && systemctl is-active --quiet "$unit"; then
    rm -f "$new"
    return
  fi
  rm -f "$noted"
  mv -f "$new" "$file"
  timeout 60 systemctl reload-or-restart "$unit" ||
    die "$unit did not start with the new configuration" "see: journalctl -u $unit (a port in use?)"
  write_file "$noted" 0600 <<<"$loads"
}

# keep_original UNIT FILE: saves the file of the package or the site, not ours, and how its unit was, for removal.
keep_original() {
  local unit=$1 file=$2 kept=$STATE_DIR/${2##*/}.original state
  if [[ -e $kept || ! -e $file ]] || is_ours "$file"; then return 0; fi
  for state in enabled active; do
    ! systemctl "is-$state" --quiet "$unit" || touch "$STATE_DIR/$unit.$state"
  done
  cp -p "$file" "$kept.new"
  mv -f "$kept.new" "$kept"
}

# remove_keepalived: also when the second load balancer was taken out of the configuration: nobody may keep the address.
# The package may have been there before without a configuration, as on Debian.
remove_keepalived() {
  [[ -e $STATE_DIR/keepalived.installed ]] || is_ours "$KEEPALIVED" || return 0
  remove_part keepalived "$KEEPALIVED"
  rm -f "$STATE_DIR"/keepalived.{conf.original,enabled,active,loaded,installed}
}

# remove_part PACKAGE FILE: purges the package if busbar installed it, else restores file and unit. A purge leaves a file
# that is not the package's, such as keepalived.conf: whoever installs keepalived later would take the virtual IP.
remove_part() {
  local package=$1 file=$2 original=$STATE_DIR/${2##*/}.original
  # Others have put theirs there since. That of the package is there where a removal was interrupted.
  if [[ -e $STATE_DIR/$package.loaded && -s $file ]] && ! is_ours "$file" && ! cmp -s "$file" "$original"; then
    note "$package stays: $file is no longer the one that busbar wrote"
    return
  fi
  stop_unit "$package"
  if [[ -e $STATE_DIR/$package.installed ]]; then
    package_purge "$package" || note "purging $package failed; it stays, stopped and disabled"
    ! is_ours "$file" || rm -f "$file"
  elif [[ -e $original ]]; then
    cp -p "$original" "$file"
    [[ ! -e $STATE_DIR/$package.enabled ]] || systemctl enable -q "$package" 2>/dev/null ||
      note "$package could not be enabled again"
    [[ ! -e $STATE_DIR/$package.active ]] || timeout 60 systemctl start "$package" ||
      note "$package does not start with its previous configuration: journalctl -u $package"
  else
    rm -f "$file"
  fi
}
