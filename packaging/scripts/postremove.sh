#!/bin/sh
# Runs after the files of the package were removed, or replaced by those of another version.
#   deb: remove | purge | upgrade NEW VERSION | …       rpm: NUMBER OF VERSIONS THAT STAY
set -e

case "$1" in
remove | 0) rm -rf /run/berth ;;
# The users stay: a later user with their numbers would own what they have left elsewhere.
purge) rm -rf /etc/berth /var/lib/berth /var/lib/berth-sidecar /var/lib/berth-worker ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
