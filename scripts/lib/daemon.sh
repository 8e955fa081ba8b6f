# Functions that start, stop and query a daemon for a test, on a machine with a ublk kernel. Sourced, never run.
# Needs common.sh. All files are under $WORK, which is removed at the end.
# shellcheck shell=bash

WORK=
DAEMON_PID=

# work_dir [DISK]: makes WORK, a scratch directory; on a new file system of DISK or of the VM's first disk, if there is one.
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
		glidefs_delete_all 60 2>/dev/null || say "not every export was deleted: devices may be left"
		kill -TERM "$DAEMON_PID" 2>/dev/null || true
		wait "$DAEMON_PID" 2>/dev/null || true
	fi
	# The kernel lets files of an ended io_uring go a while after the process.
	local tries=60 place
	for place in "$WORK/cache" "$WORK"; do
		while mountpoint -q "$place" && ! umount "$place" 2>/dev/null && [ $((tries -= 1)) -gt 0 ]; do sleep 0.5; done
	done
	rm -rf "$WORK"
	exit "$status"
}

# write_config [EXTRA-TOML]: writes the daemon's configuration from CACHE_SIZE, CLEAN_SIZE, MAPPED_MAX, GLIDEFS_CACHE_ENGINE.
write_config() {
	cat >"$WORK/glidefs.toml" <<-TOML
		[cache]
		dir = "$WORK/cache"
		size = "${CACHE_SIZE:-2GiB}"
		engine = "${GLIDEFS_CACHE_ENGINE:-buffered}"
		clean_size = "${CLEAN_SIZE:-64MiB}"
		${MAPPED_MAX:+mapped_max = "$MAPPED_MAX"}

		[api]
		listen = "127.0.0.1:9470"
		socket = "$WORK/glidefs.sock"
		${1:-}
	TOML
}

# glidefs ARGUMENT…: the command line, connected to the daemon of the test.
glidefs() { GLIDEFS_SOCKET="$WORK/glidefs.sock" "$GLIDEFS" "$@"; }

ready() { curl -sf --unix-socket "$WORK/glidefs.sock" http://localhost/readyz >/dev/null 2>&1; }

# start_daemon: starts a daemon in the background and waits until the daemon is ready.
start_daemon() {
	local waited=0
	# In a session of its own: Ctrl-C is for the script, whose cleanup removes the devices before it stops the daemon.
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

# stop_daemon [SIGNAL]: ends the daemon; devices wait for the next daemon.
stop_daemon() {
	kill "-${1:-TERM}" "$DAEMON_PID"
	wait "$DAEMON_PID" 2>/dev/null || true
	DAEMON_PID=
}

# create NAME SIZE [OPTION…]: prints the path of the new export's device.
create() { glidefs export create "$1" --size "$2" "${@:3}" --json | jq -re .device; }

# glidefs_delete_all [SECONDS]: deletes all exports; fails if that takes longer, as where a store does not answer.
glidefs_delete_all() {
	glidefs export list --json | jq -r '.[].name' |
		GLIDEFS_SOCKET="$WORK/glidefs.sock" timeout "${1:-0}" xargs -r "$GLIDEFS" export delete >/dev/null
}

metric() { curl -sf --unix-socket "$WORK/glidefs.sock" http://localhost/metrics | awk -v name="$1" '$1 == name { print $2 }'; }

# kernel_kib: memory that the kernel cannot give back, KiB: slab, per-CPU memory, page tables, and memory in no account.
kernel_kib() {
	awk '/^(MemTotal|MemFree|Buffers|Cached|AnonPages|SReclaimable):/ { v[$1] = $2 }
		END { print v["MemTotal:"] - v["MemFree:"] - v["Buffers:"] - v["Cached:"] - v["AnonPages:"] - v["SReclaimable:"] }' /proc/meminfo
}
