#!/bin/sh
# Runs before the files of the package are removed, or replaced by those of another version.
#   deb: remove | upgrade NEW VERSION | …       rpm: NUMBER OF VERSIONS THAT STAY
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;; # an upgrade: postinstall has the new processes take over
esac

command -v systemctl >/dev/null || exit 0
if [ -d /run/systemd/system ]; then
	# It waits for holders and commands, as any stop does.
	systemctl stop 'berth-source@*.service' berth-worker.service berth-coordinator.service berth-sidecar.service berth-server.service
fi
systemctl --quiet disable berth-worker.service berth-coordinator.service berth-sidecar.service berth-server.service
for link in /etc/systemd/system/*.wants/berth-source@*.service; do
	[ ! -L "$link" ] || systemctl --quiet disable "${link##*/}"
done
