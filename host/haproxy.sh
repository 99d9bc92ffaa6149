#!/usr/bin/env bash
# HAProxy in front of the Kubernetes API, and keepalived where two hosts share a virtual IP.
# VERB=install: /readyz answers 200 through this host (and through the virtual IP). VERB=remove: gone.
#
# Values: NODE_NAME, API_PORT, CA_FILE, VIRTUAL_IP (empty with one load balancer).
# Payload: haproxy_cfg, keepalived_conf (empty with one load balancer), ca_pem (CA of the API's certificate).
# Facts: {"node","haproxy","keepalived"} (versions; keepalived's is empty with one load balancer)
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib lib-install; do
  # shellcheck source=/dev/null
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

CONFIG=/etc/haproxy/haproxy.cfg
KEEPALIVED=/etc/keepalived/keepalived.conf
READYZ_DEADLINE=90
# A new VRRP group waits some seconds for a master before it takes the address.
VIRTUAL_IP_DEADLINE=30

main() {
  begin
  one_at_a_time
  case $VERB in
    install) install_balancer ;;
    remove) remove_balancer ;;
    *) die "VERB=$VERB is unknown" "use install or remove" ;;
  esac
}

install_balancer() {
  mkdir -p "$STATE_DIR"
  install_package haproxy
  payload ca_pem | place "$CA_FILE" 0644
  configure_haproxy
  if [[ -n $VIRTUAL_IP ]]; then
    install_package keepalived
    configure_keepalived
  fi
  poll "$READYZ_DEADLINE" readyz 127.0.0.1 ||
    die "https://127.0.0.1:$API_PORT/readyz is not 200 through HAProxy after $READYZ_DEADLINE s: $(backends)" \
      "check that this host reaches port $API_PORT of the servers, and on them: k3s kubectl get --raw=/readyz?verbose"
  [[ -z $VIRTUAL_IP ]] || poll "$VIRTUAL_IP_DEADLINE" readyz "$VIRTUAL_IP" ||
    die "the virtual IP $VIRTUAL_IP does not answer after $VIRTUAL_IP_DEADLINE s" \
      "check hosts.virtual_ip.interface (ip link) and that the load balancers reach each other by VRRP (protocol 112)"
  printf '{"node":%s,"haproxy":%s,"keepalived":%s}\n' "$(json "$NODE_NAME")" \
    "$(json "$(version_of haproxy)")" "$(json "${VIRTUAL_IP:+$(version_of keepalived)}")"
}

# install_package NAME: remembers what busbar brought, so that removal takes away no more.
install_package() {
  dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed' || touch "$STATE_DIR/$1.installed"
  apt_install "$1"
}

version_of() {
  dpkg-query -W -f '${Version}' "$1" 2>/dev/null || true
}

# The new configuration is checked before it takes the place of the old one; a reload keeps connections.
configure_haproxy() {
  local new=$CONFIG.busbar-new
  keep_original "$CONFIG"
  payload haproxy_cfg | place "$new" 0644
  if ! haproxy -c -q -f "$new" >&2; then
    rm -f "$new"
    die "haproxy refuses the new configuration; the old one stays in force" "its reasons are above"
  fi
  systemctl enable -q haproxy 2>/dev/null || true
  if cmp -s "$new" "$CONFIG" && cmp -s "$CA_FILE" "$STATE_DIR/haproxy-ca.loaded" &&
    systemctl is-active --quiet haproxy; then
    rm -f "$new"
    return
  fi
  mv -f "$new" "$CONFIG"
  timeout 60 systemctl reload-or-restart haproxy ||
    die "haproxy does not start with the new configuration" "look with: journalctl -u haproxy (a port in use?)"
  cp -f "$CA_FILE" "$STATE_DIR/haproxy-ca.loaded"
}

configure_keepalived() {
  local before
  keep_original "$KEEPALIVED"
  before=$(cat "$KEEPALIVED" 2>/dev/null || true)
  payload keepalived_conf | place "$KEEPALIVED" 0644
  # --config-test is missing from keepalived before 2.0; all supported distributions have it.
  keepalived --config-test -f "$KEEPALIVED" >&2 ||
    die "keepalived refuses its configuration" "its reasons are above; check hosts.virtual_ip"
  systemctl enable -q keepalived 2>/dev/null || true
  if [[ $before != "$(<"$KEEPALIVED")" ]] || ! systemctl is-active --quiet keepalived; then
    timeout 60 systemctl reload-or-restart keepalived ||
      die "keepalived does not start" "look with: journalctl -u keepalived"
  fi
}

# keep_original FILE: as the package or the site left it, for the day busbar goes.
keep_original() {
  local kept
  kept=$STATE_DIR/$(basename "$1").original
  [[ -e $kept || ! -e $1 ]] || cp -p "$1" "$kept"
}

# readyz ADDRESS: the check that counts: a certificate that the cluster's CA signed, and 200.
readyz() {
  local host=$1
  [[ $host != *:* ]] || host="[$host]"
  [[ $(curl -s -o /dev/null -w '%{http_code}' --connect-timeout 3 --max-time 6 --cacert "$CA_FILE" \
    "https://$host:$API_PORT/readyz" 2>/dev/null) == 200 ]]
}

# backends: "server-1 DOWN (L4CON), server-2 UP (L7OK)" from HAProxy's own statistics.
backends() {
  curl -s --max-time 5 'http://127.0.0.1:8404/;csv' 2>/dev/null |
    awk -F, '$1 == "servers" && $2 != "BACKEND" { printf "%s%s %s (%s)", comma, $2, $18, $37; comma = ", " }' ||
    printf 'no statistics: HAProxy does not run'
}

remove_balancer() {
  [[ ! -e $STATE_DIR/keepalived.conf.original && ! -e $STATE_DIR/keepalived.installed ]] || remove_part keepalived "$KEEPALIVED"
  remove_part haproxy "$CONFIG"
  rm -f "$CA_FILE"
  rm -rf "$STATE_DIR"
  printf '{"node":%s,"removed":true}\n' "$(json "$NODE_NAME")"
}

# remove_part PACKAGE FILE: purged where busbar brought it, else as it was before.
remove_part() {
  local package=$1 file=$2 original
  original=$STATE_DIR/$(basename "$2").original
  stop_unit "$package"
  if [[ -e $STATE_DIR/$package.installed ]]; then
    DEBIAN_FRONTEND=noninteractive timeout 180 apt-get -q -o DPkg::Lock::Timeout=120 purge -y "$package" >&2 ||
      note "$package could not be purged and stays, stopped and disabled"
  elif [[ -e $original ]]; then
    cp -p "$original" "$file"
  else
    rm -f "$file"
  fi
}

main
