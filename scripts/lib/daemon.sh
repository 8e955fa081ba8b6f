# Starting, stopping and asking a daemon of our own, on a machine with a ublk kernel. Sourced, never run.
# Needs common.sh. Everything it makes is under $WORK, which is removed at the end.
# shellcheck shell=bash

WORK=
DAEMON_PID=

# work_dir [DISK]: a scratch directory on a real file system: on DISK (or the VM's scratch disk), which is formatted.
work_dir() {
	local disk=${1:-${GLIDEFS_VM_DISK:-}}
	WORK=$(mktemp -d /tmp/glidefs.XXXXXX)
	if [ -n "$disk" ]; then
		mkfs.xfs -q -f "$disk"
		mount "$disk" "$WORK"
	fi
	mkdir -p "$WORK/cache"
	trap cleanup EXIT
	trap 'exit 130' INT TERM
}

cleanup() {
	local status=${1:-$?}
	trap - EXIT INT TERM
	if [ "$status" -ne 0 ] && [ -f "$WORK/daemon.log" ]; then
		say "--- last lines of the daemon's log"
		tail -n 40 "$WORK/daemon.log" >&2
	fi
	if [ -n "$DAEMON_PID" ] && kill -0 "$DAEMON_PID" 2>/dev/null; then
		glidefs_delete_all 2>/dev/null || true
		kill -TERM "$DAEMON_PID" 2>/dev/null || true
		wait "$DAEMON_PID" 2>/dev/null || true
	fi
	if mountpoint -q "$WORK"; then umount "$WORK" || true; fi
	rm -rf "$WORK"
	exit "$status"
}

# write_config [EXTRA-TOML]: the daemon's configuration; CACHE_SIZE, CLEAN_SIZE and GLIDEFS_CACHE_ENGINE may be set before.
write_config() {
	cat >"$WORK/glidefs.toml" <<-TOML
		[cache]
		dir = "$WORK/cache"
		size = "${CACHE_SIZE:-2GiB}"
		engine = "${GLIDEFS_CACHE_ENGINE:-auto}"
		clean_size = "${CLEAN_SIZE:-64MiB}"

		[api]
		listen = "127.0.0.1:9470"
		socket = "$WORK/glidefs.sock"
		${1:-}
	TOML
}

# glidefs ARGUMENT…: the command line, talking to our daemon.
glidefs() { GLIDEFS_SOCKET="$WORK/glidefs.sock" "$GLIDEFS" "$@"; }

ready() { curl -sf --unix-socket "$WORK/glidefs.sock" http://localhost/readyz >/dev/null 2>&1; }

# start_daemon: in the background, and waits until it serves.
start_daemon() {
	local waited=0
	# In a session of its own: Ctrl-C is for the script, which removes the devices before it stops the daemon.
	setsid "$GLIDEFS" run --config "$WORK/glidefs.toml" >>"$WORK/daemon.log" 2>&1 &
	DAEMON_PID=$!
	until ready; do
		kill -0 "$DAEMON_PID" 2>/dev/null || {
			tail -n 5 "$WORK/daemon.log" >&2
			die "the daemon did not start"
		}
		sleep 0.2
		waited=$((waited + 1))
		[ $waited -lt "${READY_PATIENCE:-600}" ] || die "the daemon was not ready after $((waited / 5)) s"
	done
}

# stop_daemon [SIGNAL]: ends it; devices wait for the next one.
stop_daemon() {
	kill "-${1:-TERM}" "$DAEMON_PID"
	wait "$DAEMON_PID" 2>/dev/null || true
	DAEMON_PID=
}

# create NAME SIZE [OPTION…]: prints the path of the new export's device.
create() { glidefs export create "$1" --size "$2" "${@:3}" --json | jq -re .device; }

glidefs_delete_all() {
	glidefs export list --json | jq -r '.[].name' | GLIDEFS_SOCKET="$WORK/glidefs.sock" xargs -r "$GLIDEFS" export delete >/dev/null
}

metric() { curl -sf --unix-socket "$WORK/glidefs.sock" http://localhost/metrics | awk -v name="$1" '$1 == name { print $2 }'; }
