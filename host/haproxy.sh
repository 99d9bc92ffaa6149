#!/usr/bin/env bash
# HAProxy in front of the Kubernetes API, and keepalived if two hosts share a virtual IP.
# VERB=install: the health check passes through this host (and the virtual IP). VERB=remove: removed.
#
# Values: OWNER, INSTALL_ID, NODE_NAME, API_PORT, CA_FILE, VIRTUAL_IP (empty with one load balancer).
# Payload: haproxy_cfg, keepalived_conf (empty with one load balancer), ca_pem (CA of the API's certificate).
# Facts: {"node"}
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner packages keepalived

CONFIG=/etc/haproxy/haproxy.cfg
HEALTH_DEADLINE=90

main() {
  begin_verb install remove
  acquire_lock
  "${VERB}_balancer"
}

install_balancer() {
  refuse_foreign_haproxy
  [[ -z $VIRTUAL_IP ]] || refuse_foreign_keepalived
  claim_host "load balancer"
  install_package haproxy
  payload ca_pem | write_file "$CA_FILE" 0644
  configure_haproxy
  if [[ -n $VIRTUAL_IP ]]; then
    install_package keepalived
    configure_keepalived
  else
    remove_keepalived
  fi
  poll "$HEALTH_DEADLINE" healthy 127.0.0.1 ||
    die "https://127.0.0.1:$API_PORT$(health_path) through HAProxy is not 200 after $HEALTH_DEADLINE s: $(backends)" \
      "check that this host reaches port $API_PORT of the servers, and on them: k3s kubectl get --raw=$(health_path)?verbose"
  [[ -z $VIRTUAL_IP ]] || poll "$VIRTUAL_IP_DEADLINE" healthy "$VIRTUAL_IP" ||
    die "the virtual IP $VIRTUAL_IP is not responding after $VIRTUAL_IP_DEADLINE s" \
      "check hosts.virtual_ip.interface (ip link) and that the load balancers reach each other by VRRP (protocol 112)"
  record_applied "$CONFIG" "$CA_FILE" ${VIRTUAL_IP:+"$KEEPALIVED"}
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

# refuse_foreign_haproxy: one that others have begun to run after preflight. That of the package alone has no TCP port.
refuse_foreign_haproxy() {
  [[ -e $STATE_DIR/haproxy.installed || -e $STATE_DIR/haproxy.cfg.original ]] || is_ours "$CONFIG" ||
    ! ss -Hltnp | grep '"haproxy"' >/dev/null ||
    die "haproxy already serves on this host, with a configuration that busbar did not write; no changes made" \
      "use another host for the load balancer; or stop it: systemctl disable --now haproxy"
}

configure_haproxy() {
  configure_part haproxy "$CONFIG" "$CA_FILE" haproxy -c -q -f
}

# health_path: the path that HAProxy checks (option httpchk in haproxy.cfg); the installation checks the same.
health_path() {
  sed -n 's/^ *option httpchk GET //p' "$CONFIG"
}

# healthy ADDRESS: whether the health check answers 200 with a certificate of the cluster's CA.
healthy() {
  local host=$1
  [[ $host != *:* ]] || host="[$host]"
  [[ $(curl -s --noproxy '*' -o /dev/null -w '%{http_code}' --connect-timeout 3 --max-time 6 --cacert "$CA_FILE" \
    "https://$host:$API_PORT$(health_path)" 2>/dev/null) == 200 ]]
}

# backends: "server-1 DOWN (L4CON), server-2 UP (L7OK)" from the statistics of HAProxy.
backends() {
  curl -s --noproxy '*' --max-time 5 'http://127.0.0.1:8404/;csv' 2>/dev/null |
    awk -F, '$1 == "servers" && $2 != "BACKEND" { printf "%s%s %s (%s)", comma, $2, $18, $37; comma = ", " }' ||
    printf 'no statistics: HAProxy is not running'
}

remove_balancer() {
  may_remove || return 0
  remove_keepalived
  remove_part haproxy "$CONFIG"
  rm -f "$CA_FILE"
  remove_state
  removed true
}

main
