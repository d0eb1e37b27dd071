#!/bin/sh
# Runs after the files of the package are in place.
#   deb: configure [OLD VERSION]       rpm: NUMBER OF INSTALLED VERSIONS
set -e

upgrade=
case "$1" in
configure) upgrade=$2 ;;
1) ;;
[2-9]*) upgrade=yes ;;
*) exit 0 ;; # deb: another package's trouble was undone
esac

systemd-sysusers berth.conf
systemd-tmpfiles --create berth.conf || true # it needs /proc; each boot does it, too

# This script enables and starts nothing: berth needs its settings first.
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
[ -n "$upgrade" ] || exit 0

# It replaces running services, and leaves stopped ones stopped. Reload is HUP, see the units:
# claims and commands continue, and the next process takes them over. If a unit fails to start, its
# status and the journal say why; the package is installed nevertheless.
systemctl try-reload-or-restart berth-server.service berth-sidecar.service berth-worker.service || true
systemctl try-restart berth-coordinator.service 'berth-source@*.service' || true
