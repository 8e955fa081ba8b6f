# shellcheck shell=bash
# Starts the VM, carries output and the caller's signals, and makes sure that the VM ends. Sourced by scripts/vm.
#
# The output travels through files: the guest appends, the host follows. A write of the guest is in the file when the write
# returns, so no end of the VM loses or reorders output, and binary data stays unchanged.

# Time for the command to end after the first SIGINT or SIGTERM. A second signal ends the VM at once.
readonly STOP_GRACE_SECONDS=${GLIDEFS_VM_STOP_GRACE_SECONDS:-20}
# Generous: the host may be compiling.
readonly BOOT_SECONDS_MAX=${GLIDEFS_VM_BOOT_SECONDS_MAX:-300}
readonly LOGS_KEPT=50

QEMU_PID=
FOLLOWERS=()
SIGNALS=()
SAVED_TERMINAL=

# run_is_alive DIRECTORY: whether the script or the QEMU of that run lives: both hold the descriptor of the directory's lock.
run_is_alive() {
	! flock --nonblock "$1/lock" true 2>/dev/null
}

# Removes directories of VMs whose script was killed before the cleanup. Called with the lock of the run directory held.
remove_stale_runs() {
	local run
	for run in "$VM_HOME"/run/*/; do
		if [[ -d $run ]] && ! run_is_alive "$run"; then
			rm -rf "$run"
		fi
	done
}

make_run_dir() {
	mkdir -p "$VM_HOME/run" "$VM_HOME/log" "$VM_SHARE"
	exec {runs_lock}>"$VM_HOME/run/.lock"
	flock "$runs_lock"
	remove_stale_runs
	RUN_DIR=$(mktemp -d "$VM_HOME/run/$$.XXXX")
	exec {run_lock}>"$RUN_DIR/lock"
	flock "$run_lock"
	exec {runs_lock}>&-
	mkdir "$RUN_DIR/guest"
	LOG_FILE=$VM_HOME/log/$(date +%Y%m%d-%H%M%S)-${RUN_DIR##*/}.log
	# shellcheck disable=SC2012 # the names are our own
	ls -t "$VM_HOME/log" | tail -n +"$LOGS_KEPT" | (cd "$VM_HOME/log" && xargs -r rm -f)
}

alive() {
	kill -0 "$1" 2>/dev/null
}

end_qemu() {
	if [[ -n $QEMU_PID ]] && alive "$QEMU_PID"; then
		kill -KILL "$QEMU_PID"
		wait "$QEMU_PID" 2>/dev/null || true
	fi
}

clean_up() {
	end_qemu
	if [[ -n $SAVED_TERMINAL ]]; then
		stty "$SAVED_TERMINAL"
	fi
	if ((${#FOLLOWERS[@]} > 0)); then
		kill "${FOLLOWERS[@]}" 2>/dev/null || true
	fi
	rm -rf "${RUN_DIR:?}"
}

start_qemu() {
	# setsid: Ctrl-C reaches this script and not QEMU. --pdeathsig: QEMU ends with this script, even if the script is killed.
	local start=(setsid setpriv --pdeathsig KILL "${QEMU[@]}")
	if [[ $OPT_MODE == shell ]]; then
		SAVED_TERMINAL=$(stty -g)
		"${start[@]}" 2>"$RUN_DIR/qemu.log" <&0 &
	else
		"${start[@]}" >"$RUN_DIR/qemu.log" 2>&1 </dev/null &
	fi
	QEMU_PID=$!
	if [[ -n $OPT_PID_FILE ]]; then
		printf '%s\n' "$QEMU_PID" >"$OPT_PID_FILE"
	fi
}

# Copies the guest's output from the files to stdout and stderr of this script, until QEMU is gone and all is copied.
# In sessions of their own: a signal to the process group is for this script to handle.
follow_output() {
	setsid tail -c +1 -s 0.1 -f --pid="$QEMU_PID" "$RUN_DIR/guest/stdout" 2>/dev/null &
	FOLLOWERS+=($!)
	setsid tail -c +1 -s 0.1 -f --pid="$QEMU_PID" "$RUN_DIR/guest/stderr" >&2 2>/dev/null &
	FOLLOWERS+=($!)
}

follow_log() {
	: >"$LOG_FILE"
	setsid tail -c +1 -s 0.1 -f --pid="$QEMU_PID" "$LOG_FILE" >&2 2>/dev/null &
	FOLLOWERS+=($!)
}

show_log() {
	say "$1; the end of its log, $LOG_FILE:"
	cat "$RUN_DIR/qemu.log" <(tail -n 25 "$LOG_FILE") 2>/dev/null | tr -d '\r' | sed 's/^/  | /' >&2
}

explain_death() {
	if [[ -e $RUN_DIR/guest/failure ]]; then
		say "$(<"$RUN_DIR/guest/failure")"
	fi
	if grep -aqE 'Kernel panic|Oops:|BUG:|general protection fault' "$LOG_FILE" 2>/dev/null; then
		show_log "the kernel of the VM panicked"
	elif [[ -s $RUN_DIR/guest/started ]]; then
		show_log "the VM ended before the command did"
	else
		show_log "the VM did not boot"
	fi
}

# give_up STATUS: ends the VM, and the script with STATUS.
give_up() {
	RESULT=$1
	end_qemu
}

# Hands the caller's signal to the command, through the guest's second serial port.
forward_signal() {
	if [[ ! -s $RUN_DIR/guest/started || $OPT_MODE == shell || $stop_deadline -gt 0 ]]; then
		give_up "$((128 + $(kill -l "$1")))"
		return
	fi
	stop_deadline=$((SECONDS + STOP_GRACE_SECONDS))
	RESULT_OF_STOP=$((128 + $(kill -l "$1")))
	# Opened for both directions: such an open of a pipe never waits, also if QEMU has just ended.
	printf '%s\n' "$1" 1<>"$RUN_DIR/control.in"
}

announce_boot() {
	local now=${EPOCHREALTIME/[^0-9]/}
	booted=yes
	printf 'vm: Linux %s up after %d.%d s\n' "$(<"$RUN_DIR/guest/started")" \
		$(((now - STARTED_MICROSECONDS) / 1000000)) $(((now - STARTED_MICROSECONDS) % 1000000 / 100000)) >&2
	if [[ $OPT_MODE == shell ]]; then
		say "Ctrl-D or exit ends the VM"
	fi
}

# Waits for the end of the VM: the command's, a time limit's, a signal's or a failure's. Looks ten times a second: cheap, and an
# emulated guest does nothing faster.
watch_vm() {
	local booted=no stop_deadline=0 grace=0 follower
	exec {clock}<> <(:)
	while alive "$QEMU_PID"; do
		read -r -t 0.1 -u "$clock" || true
		if ((${#SIGNALS[@]} > 0)); then
			forward_signal "${SIGNALS[0]}"
			SIGNALS=("${SIGNALS[@]:1}")
		fi
		if [[ $booted == no && -s $RUN_DIR/guest/started ]]; then
			announce_boot
		fi
		if [[ -s $RUN_DIR/guest/status ]]; then
			# The guest powers off by itself, unless a wedged device keeps the guest from powering off.
			if ((grace++ > 20)); then
				end_qemu
			fi
		elif ((OPT_TIMEOUT > 0 && SECONDS >= OPT_TIMEOUT)); then
			say "the command did not end within $OPT_TIMEOUT s"
			give_up "$STATUS_TIMEOUT"
		elif ((stop_deadline > 0 && SECONDS >= stop_deadline)); then
			say "the command did not end within $STOP_GRACE_SECONDS s of the signal"
			give_up "$RESULT_OF_STOP"
		elif [[ $booted == no ]] && ((SECONDS >= BOOT_SECONDS_MAX)); then
			show_log "the VM did not boot within $BOOT_SECONDS_MAX s"
			give_up "$STATUS_VM_FAILED"
		fi
		for follower in "${FOLLOWERS[@]}"; do
			# The reader of the output is gone: end as with a broken pipe.
			if ! alive "$follower" && alive "$QEMU_PID"; then
				give_up $((128 + $(kill -l PIPE)))
			fi
		done
	done
	exec {clock}>&-
}

# died_in_boot: the kernel died before the command began, so another boot loses nothing. QEMU before 8.1 may run an instruction that
# the kernel has just replaced (a stale int3), which is fatal while the processors start.
died_in_boot() {
	[[ -z $RESULT && ! -s $RUN_DIR/guest/started && ! -e $RUN_DIR/guest/failure ]] &&
		grep -aq 'Kernel panic' "$LOG_FILE" 2>/dev/null
}

run_qemu() {
	start_qemu
	if [[ $OPT_MODE == exec ]]; then
		follow_output
	fi
	if [[ $OPT_VERBOSE == yes ]]; then
		follow_log
	fi
	watch_vm
	wait "${FOLLOWERS[@]}" 2>/dev/null || true
	FOLLOWERS=()
}

# Runs the VM to its end and exits with the status that tells how it went.
run_vm() {
	local try
	RESULT='' RESULT_OF_STOP=''
	# The time of the preparation does not count.
	SECONDS=0 STARTED_MICROSECONDS=${EPOCHREALTIME/[^0-9]/}
	trap clean_up EXIT
	trap 'SIGNALS+=(INT)' INT
	trap 'SIGNALS+=(TERM)' TERM
	trap 'SIGNALS+=(HUP)' HUP
	make_run_dir
	# QEMU has a descriptor for every file that the guest has open.
	ulimit -Sn "$(ulimit -Hn)"
	build_command_line
	write_guest_files
	for ((try = 1; try <= BOOT_TRIES; try++)); do
		run_qemu
		if ! died_in_boot; then
			break
		fi
		show_log "the kernel died while it booted (try $try of $BOOT_TRIES)"
	done
	if [[ -n $RESULT ]]; then
		exit "$RESULT"
	elif [[ -s $RUN_DIR/guest/status ]]; then
		exit "$(<"$RUN_DIR/guest/status")"
	fi
	explain_death
	exit "$STATUS_VM_FAILED"
}
