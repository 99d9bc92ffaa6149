#!/usr/bin/env bash
# slurmdbd and MariaDB on the controller's host. Jobs run on while either is down: slurmctld keeps what it has to tell them.
#
# Values: KEEP_DATA (true or false). Payload: slurmdbd_conf (secret; empty without accounting), database_password (secret).

DBD_PORT=6819
DATABASE=slurm_acct_db
DBD_DEADLINE=90
MYSQL=/var/lib/mysql

install_accounting() {
  [[ -n $(payload slurmdbd_conf) ]] || { stop_accounting; return; }
  local mysql=()
  [[ $SLURM_PACKAGES != os ]] || mysql=(+slurm-wlm-mysql-plugin)
  # It may have the databases of a MariaDB, or of a Slurm, whose packages are gone.
  package_installed mariadb-server || [[ -e $MYSQL ]] || touch "$STATE_DIR/mariadb.created"
  install_slurm slurmdbd "${mysql[@]}" +mariadb-server
  slurm_folders
  write_key
  timeout 90 systemctl start mariadb || die "mariadb did not start" "see: journalctl -u mariadb"
  systemctl enable -q mariadb 2>/dev/null || true
  create_database
  payload slurmdbd_conf | write_owned "$SLURM_FOLDER/slurmdbd.conf"
  start_unit slurmdbd "$(sha256sum "$SLURM_KEY" "$SLURM_FOLDER/slurmdbd.conf") $(slurm_version slurmdbd)"
  poll "$DBD_DEADLINE" dbd_listens ||
    die "slurmdbd does not listen on port $DBD_PORT after $DBD_DEADLINE s: $(last_lines slurmdbd)" "see: journalctl -u slurmdbd -u mariadb"
}

# create_database: the statements travel on stdin: the password is in no argument.
create_database() {
  local password known
  password=$(payload database_password)
  known=$(mariadb -BN <<<"SHOW DATABASES LIKE '$DATABASE'; SELECT User FROM mysql.user WHERE User='slurm' AND Host='localhost';") ||
    die "MariaDB does not tell its databases and users" "root must reach it over its socket: try mariadb -e 'select 1'"
  if [[ ! -e $STATE_DIR/database.created && $known != *"$DATABASE"* ]]; then
    # Beside the database it would be the user of a slurmdbd that was here before.
    [[ -z $known ]] || die "MariaDB has a user slurm, and no database $DATABASE: it belongs to something else, and its password stays" \
      "if nothing uses it: mariadb -e \"DROP USER 'slurm'@'localhost'\"; else give it another name (RENAME USER), and to what logs in with it; then retry"
    touch "$STATE_DIR/database.created"
  fi
  mariadb <<<"CREATE DATABASE IF NOT EXISTS $DATABASE;
CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED BY '$password';
ALTER USER 'slurm'@'localhost' IDENTIFIED BY '$password';
GRANT ALL ON $DATABASE.* TO 'slurm'@'localhost';" >&2 ||
    die "the database $DATABASE cannot be created" "root must reach MariaDB over its socket: try mariadb -e 'select 1'"
}

dbd_listens() {
  [[ -n $(ss -Hltn "sport = :$DBD_PORT") ]]
}

# stop_accounting: where accounting was switched off; packages and data stay until the controller is removed.
stop_accounting() {
  [[ -e $SLURM_FOLDER/slurmdbd.conf ]] || return 0
  stop_unit slurmdbd
  rm -f "$SLURM_FOLDER/slurmdbd.conf" "$STATE_DIR/slurmdbd.started"
}

# remove_accounting: before the packages are purged; MariaDB's keep their data then. A database that was there before stays.
remove_accounting() {
  stop_accounting
  # One in which others have put a database since is not busbar's any more.
  [[ -z $(find "$MYSQL" -mindepth 1 -maxdepth 1 -type d ! -regex ".*/\(mysql\|sys\|performance_schema\|lost.found\|#.*\|$DATABASE\)" 2>/dev/null || true) ]] || {
    note "mariadb stays, with the databases of others in $MYSQL"
    rm -f "$STATE_DIR/mariadb.created"
    [[ ! -e $STATE_DIR/packages.added ]] || sed -i '/^mariadb/d' "$STATE_DIR/packages.added"
  }
  if [[ $KEEP_DATA != true && -e $STATE_DIR/database.created ]]; then
    ! systemctl is-active --quiet mariadb || mariadb <<<"DROP DATABASE IF EXISTS $DATABASE; DROP USER IF EXISTS 'slurm'@'localhost';" >&2
    [[ ! -e $STATE_DIR/mariadb.created ]] || { stop_unit mariadb; rm -rf "$MYSQL"; }
  elif [[ -d $MYSQL/$DATABASE ]]; then
    [[ ! -e $STATE_DIR/mariadb.created ]] || stop_unit mariadb
    note "the accounting data stay in $MYSQL/$DATABASE"
  fi
  rm -f /var/log/slurm/slurmdbd.log
}
