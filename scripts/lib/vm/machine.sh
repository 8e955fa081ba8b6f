# shellcheck shell=bash
# One virtual machine: the QEMU command line, and the files for the guest. Sourced by scripts/vm.
#
# Reads the options of scripts/vm (OPT_*). Files are in RUN_DIR, which is removed with the VM; the guest sees RUN_DIR/guest as
# /run/glidefs-vm.

# Names of the caller's variables that COMMAND gets, besides those of --env.
PASSED_VARIABLES='^(PATH|HOME|USER|LOGNAME|LANG|LC_ALL|TERM|RUST_[A-Z_]*|RUSTUP_[A-Z_]*|CARGO_[A-Z0-9_]*|GLIDEFS_[A-Z0-9_]*)$'

# size_mib SIZE: prints "4G", "512M", "1048576K" or plain MiB, in MiB.
size_mib() {
	case $1 in
	*[!0-9KMGT]* | '' | [KMGT]*) return 1 ;;
	*K) echo $((${1%K} / 1024)) ;;
	*M) echo "${1%M}" ;;
	*G) echo $((${1%G} * 1024)) ;;
	*T) echo $((${1%T} * 1024 * 1024)) ;;
	*) echo "$1" ;;
	esac
}

# qemu_value TEXT: TEXT as a value inside one of QEMU's comma-separated options.
qemu_value() {
	printf '%s' "${1//,/,,}"
}

guest_disk_name() {
	local letters=abcdefghijklmnopqrstuvwxyz
	printf '/dev/vd%s' "${letters:$1:1}"
}

# Disks become /dev/vda, /dev/vdb … in the order of their options.
add_disks() {
	local entry kind value index=0 path
	GUEST_DISKS=() GUEST_KEPT_DISKS=()
	for entry in "${OPT_DISKS[@]}"; do
		kind=${entry%%:*}
		value=${entry#*:}
		if [[ $kind == new ]]; then
			path=$RUN_DIR/disk$index.raw
			truncate -s "$value" "$path"
			# Nobody reads this disk after the VM: a FLUSH of the guest need not reach the host's disk.
			QEMU+=(-drive "file=$(qemu_value "$path"),if=none,id=disk$index,format=raw,cache=unsafe,discard=unmap")
		else
			# Each write of the guest is in the host's page cache at least, so writes survive any end of
			# QEMU; a FLUSH of the guest is an fdatasync on the host.
			QEMU+=(-drive "file=$(qemu_value "$value"),if=none,id=disk$index,format=raw,cache=writeback,discard=unmap")
			GUEST_KEPT_DISKS+=("$(guest_disk_name "$index")")
		fi
		QEMU+=(-device "virtio-blk-pci,drive=disk$index,serial=disk$index")
		GUEST_DISKS+=("$(guest_disk_name "$index")")
		index=$((index + 1))
	done
}

# Processors and memory in equal shares; the last node gets the remainder of the memory.
add_numa_nodes() {
	local node memory_mib=$1 share_mib cpus_each
	cpus_each=$((OPT_CPUS / OPT_NUMA))
	share_mib=$((memory_mib / OPT_NUMA))
	for ((node = 0; node < OPT_NUMA; node++)); do
		if ((node == OPT_NUMA - 1)); then
			share_mib=$((memory_mib - share_mib * node))
		fi
		QEMU+=(-object "memory-backend-ram,id=memory$node,size=${share_mib}M"
			-numa "node,nodeid=$node,memdev=memory$node,cpus=$((node * cpus_each))-$((node * cpus_each + cpus_each - 1))")
	done
}

add_network() {
	local pair host_port guest_port netdev="user,id=net0,ipv6=off"
	for pair in "${OPT_FORWARDS[@]}"; do
		host_port=${pair%%:*}
		guest_port=${pair##*:}
		# To the guest's loopback address: the daemon's default is to listen there only.
		netdev+=",hostfwd=tcp:127.0.0.1:$host_port-127.0.0.1:$guest_port"
	done
	QEMU+=(-netdev "$netdev" -device "virtio-net-pci,netdev=net0,romfile=")
}

# Fills QEMU, the command line.
build_command_line() {
	local kernel memory_mib arguments ownership=none
	kernel=$(kernel_dir "$OPT_KERNEL")
	memory_mib=$(size_mib "$OPT_MEMORY")
	# Owners and modes are passed through where the host lets QEMU set them.
	if ((EUID == 0)); then
		ownership=passthrough
	fi
	# A panic or an oops ends the VM. The watchdogs are off: watchdogs would take a busy host for a hung guest.
	arguments="console=ttyS0 panic=-1 oops=panic nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
	# Measuring the delay loop and checking the timer take long and fail on a busy host: a delay is given, the check left out.
	arguments+=" mitigations=off tsc=reliable lpj=10000000 no_timer_check"
	if [[ -n $OPT_PLUGIN ]]; then
		arguments+=" nokaslr"
	fi
	if [[ $OPT_VERBOSE == yes ]]; then
		arguments+=" loglevel=8"
	else
		arguments+=" loglevel=6"
	fi

	# Without the flags for fast string moves (erms, fsrm) the kernel copies eight bytes a step. With the flags the kernel would
	# copy one byte a step, and the emulator carries out each step by itself.
	# shellcheck disable=SC2054 # the comma belongs to QEMU's option
	QEMU=(qemu-system-x86_64 -name glidefs-vm -nodefaults -no-user-config -display none -no-reboot -machine q35
		-cpu max,-erms,-fsrm -m "${memory_mib}M" -kernel "$kernel/kernel" -initrd "$kernel/initramfs" -append "$arguments")
	if [[ -n $OPT_PLUGIN ]]; then
		QEMU+=(-plugin "$OPT_PLUGIN")
	fi
	if [[ $OPT_DETERMINISTIC == yes ]]; then
		QEMU+=(-accel "tcg,thread=single" -icount "shift=0,sleep=off" -rtc clock=vm)
	else
		QEMU+=(-accel "tcg,thread=multi")
	fi
	if ((OPT_NUMA > 1)); then
		QEMU+=(-smp "$OPT_CPUS,sockets=$OPT_NUMA,cores=$((OPT_CPUS / OPT_NUMA)),threads=1")
		add_numa_nodes "$memory_mib"
	else
		QEMU+=(-smp "$OPT_CPUS")
	fi

	# First serial port: the kernel's console. Second: signals for the command, or the terminal of the shell.
	QEMU+=(-chardev "file,id=console,path=$(qemu_value "$LOG_FILE")" -serial chardev:console)
	if [[ $OPT_MODE == shell ]]; then
		QEMU+=(-chardev "stdio,id=control,signal=off")
	else
		mkfifo "$RUN_DIR/control.in" "$RUN_DIR/control.out"
		QEMU+=(-chardev "pipe,id=control,path=$(qemu_value "$RUN_DIR/control")")
	fi
	QEMU+=(-serial chardev:control)

	# remap: the host's root may span several file systems, whose inode numbers must not collide.
	QEMU+=(-fsdev "local,id=root,path=/,security_model=$ownership,readonly=on,multidevs=remap"
		-device "virtio-9p-pci,fsdev=root,mount_tag=vmroot"
		-fsdev "local,id=run,path=$(qemu_value "$RUN_DIR/guest"),security_model=none"
		-device "virtio-9p-pci,fsdev=run,mount_tag=vmrun"
		-fsdev "local,id=share,path=$(qemu_value "$VM_SHARE"),security_model=$ownership,multidevs=remap"
		-device "virtio-9p-pci,fsdev=share,mount_tag=vmshare")
	add_disks
	if ((${#OPT_FORWARDS[@]} > 0)) || [[ $OPT_S3 == yes ]]; then
		add_network
	fi
}

# write_guest_files: writes the settings of the guest, the command with its environment, and stage 2.
write_guest_files() {
	local name merge=no guest=$RUN_DIR/guest rows=24 columns=80
	# One stream in the guest if the caller has only one: stdout and stderr then keep their common order.
	if [[ $OPT_MODE == exec && /dev/fd/1 -ef /dev/fd/2 ]]; then
		merge=yes
	fi
	if [[ $OPT_MODE == shell ]]; then
		read -r rows columns < <(stty size)
	fi
	{
		printf 'VM_MODE=%q\nVM_REPOSITORY=%q\nVM_CWD=%q\n' "$OPT_MODE" "$REPOSITORY" "$PWD"
		printf 'VM_SHARE=%q\nVM_KEPT_DISKS=%q\n' "$VM_SHARE" "${GUEST_KEPT_DISKS[*]}"
		printf 'VM_MODULES=%q\n' "$(kernel_dir "$OPT_KERNEL")/lib/modules/$(<"$(kernel_dir "$OPT_KERNEL")/release")"
		printf 'VM_MERGE_OUTPUT=%q\nVM_ROWS=%q\nVM_COLUMNS=%q\n' "$merge" "$rows" "$columns"
	} >"$guest/config"
	{
		while read -r name; do
			if [[ $name =~ $PASSED_VARIABLES ]]; then
				printf 'export %s=%q\n' "$name" "${!name}"
			fi
		done < <(compgen -e)
		for name in "${OPT_ENVIRONMENT[@]}"; do
			if [[ $name == *=* ]]; then
				printf 'export %s=%q\n' "${name%%=*}" "${name#*=}"
			elif [[ -v $name ]]; then
				printf 'export %s=%q\n' "$name" "${!name}"
			fi
		done
		printf 'export GLIDEFS_VM=%q GLIDEFS_VM_SHARE=%q\n' "$OPT_KERNEL" "$VM_SHARE"
		printf 'export GLIDEFS_VM_DISK=%q GLIDEFS_VM_DISKS=%q\n' "${GUEST_DISKS[0]:-}" "${GUEST_DISKS[*]}"
		printf 'exec'
		printf ' %q' "${OPT_COMMAND[@]}"
		printf '\n'
	} >"$guest/command"
	cp "$VM_LIB/guest-stage2" "$guest/guest-stage2"
	: >"$guest/stdout"
	: >"$guest/stderr"
}
