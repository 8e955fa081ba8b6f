# shellcheck shell=bash
# A run of checks on a whole system: its directory, the results from inside and outside of the machine, the end. Sourced by
# scripts/system-test and scripts/package-test, after lib/system/machine.sh.
#
# The script sets TIME_LIMIT (seconds) and KEEP (yes or no). The guest writes its results, a line each, into host/results in RUN_DIR.

PASSED=0
FAILED=0
SHOWN=0

# begin_run: makes the image ready, and RUN_DIR, which goes at the end.
begin_run() {
	DEADLINE=$((SECONDS + TIME_LIMIT))
	step "getting ready"
	need_machine_tools
	"$REPOSITORY/scripts/vm" prepare --kernel trixie-backports
	prepare_image
	RUN_DIR=$VM_HOME/system/$$
	remove_old_runs
	mkdir -p "$RUN_DIR"
	trap clean_up EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	prepare_machine 4G
	cp "$REPOSITORY/scripts/lib/system/guest-common" "$RUN_DIR/host/"
}

# remove_old_runs: removes directories of runs that were kept, or killed before their cleanup.
remove_old_runs() {
	local old
	for old in "$VM_HOME"/system/*; do
		[ -d "/proc/${old##*/}" ] || rm -rf "$old"
	done
}

clean_up() {
	local status=$?
	trap - EXIT INT TERM HUP
	end_machine
	if [ "$KEEP" = yes ]; then say "the run is kept in $RUN_DIR"; else rm -rf "$RUN_DIR"; fi
	exit $status
}

# show_results: prints and counts results that are new since the last call.
show_results() {
	local line
	[ -e "$RUN_DIR/host/results" ] || return 0
	while read -r line; do
		SHOWN=$((SHOWN + 1))
		case $line in
		ok*) PASSED=$((PASSED + 1)) ;;
		"not ok"*) FAILED=$((FAILED + 1)) ;;
		*) continue ;;
		esac
		printf '%s\n' "$line"
	done < <(tail -n +$((SHOWN + 1)) "$RUN_DIR/host/results")
}

# result STATUS TITLE: the result of a check from outside the machine.
result() {
	show_results
	if [ "$1" -eq 0 ]; then
		PASSED=$((PASSED + 1))
		printf 'ok %s\n' "$2"
	else
		FAILED=$((FAILED + 1))
		printf 'not ok %s\n' "$2"
	fi
}

# show_console REASON: the end of the console, without systemd's progress display.
show_console() {
	say "$1; the end of its console:"
	tr -d '\r' <"$CONSOLE" | grep -av ' running (' | tail -n 20 >&2
}

has_ended() { grep -qx end "$RUN_DIR/host/results" 2>/dev/null; }

# follow CONDITION…: shows results until the condition holds. Status 1 if the machine or the checks ended before.
follow() {
	until "$@"; do
		show_results
		if ! machine_runs; then
			show_console "the machine ended by itself"
			return 1
		fi
		if [ $SECONDS -ge "$DEADLINE" ]; then
			show_console "the time limit of $TIME_LIMIT s is over"
			return 1
		fi
		# The checks ended before the condition held.
		if has_ended && [ "$1" != has_ended ]; then return 1; fi
		sleep 0.2
	done
	show_results
}

# end_run NAME: prints what failed, and the closing line. Status 1 unless all passed.
end_run() {
	if [ $FAILED -ne 0 ]; then
		say
		cat "$RUN_DIR/host/failures" "$RUN_DIR/host/log" >&2 2>/dev/null || true
	fi
	printf '%s: %d passed, %d failed\n' "$1" "$PASSED" "$FAILED"
	[ $FAILED -eq 0 ] && [ $PASSED -gt 0 ]
}
