#!/bin/bash
# Runs once inside a fresh base (chroot): brings a debootstrap tree to the state of an installed server.
set -euo pipefail

# Each host gets its own identity before its first boot.
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id /etc/hostname
: > /etc/machine-id

# Installed and disabled, where the base has them: the product enables what it needs.
for unit in haproxy keepalived; do
  [[ ! -e /usr/lib/systemd/system/$unit.service && ! -e /lib/systemd/system/$unit.service ]] || systemctl disable --quiet "$unit.service"
done
systemctl enable --quiet systemd-networkd.service ssh.service busbar-lab-boot.service busbar-lab-apt.service
# The machine that runs the lab does these.
systemctl mask --quiet systemd-resolved.service systemd-timesyncd.service e2scrub_reap.service \
  fstrim.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer

# Three kinds of login, so that each can be tested: root, sudo without a password, no sudo.
useradd --create-home --shell /bin/bash deploy
useradd --create-home --shell /bin/bash guest
printf 'deploy ALL=(ALL) NOPASSWD: ALL\n' > /etc/sudoers.d/deploy
chmod 0440 /etc/sudoers.d/deploy

# Every login prints something, as on many sites: a banner, and a greeting on stdout also without a terminal (bash
# reads .bashrc under sshd). `python -m lab ssh HOST COMMAND` sends the variable that silences the greeting.
cat > /etc/ssh/sshd_config.d/10-lab.conf <<'CONF'
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
AuthorizedKeysFile /etc/ssh/authorized_keys
UseDNS no
MaxStartups 10:30:100
Banner /etc/issue.net
AcceptEnv BUSBAR_LAB_QUIET
CONF
printf 'busbar lab: authorised use only\n' > /etc/issue.net
cat > /tmp/greeting <<'BASHRC'
[[ -n ${BUSBAR_LAB_QUIET:-} ]] || echo "Welcome to $(hostname) {\"maintenance\": \"Sunday\"}"
BASHRC
for home in /root /home/deploy /home/guest; do
  cat /tmp/greeting "$home/.bashrc" > /tmp/bashrc
  cat /tmp/bashrc > "$home/.bashrc"
done
rm /tmp/greeting /tmp/bashrc
mkdir -p /var/log/journal

apt-get clean
rm -rf /var/lib/apt/lists/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
