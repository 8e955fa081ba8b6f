# shellcheck shell=bash
# The virtual machine of scripts/system-test: disks, boot, power cut. Sourced by scripts/system-test.
#
# RUN_DIR holds all files of one run: root.ext4 (a copy of the image), cache.raw (the stable content of the disk under the cache),
# host/ (the guest's /host), console.N and cache.log. RUN_DIR is removed at the end of the run.
#
# The disk under the cache has a volatile write cache: nbdkit keeps every write in an unlinked file, and copies the writes to
# cache.raw at a FLUSH of the guest, and only then. A kill of nbdkit and QEMU loses exactly the writes since the last FLUSH: the
# worst a disk may do.

QEMU_PID=
NBDKIT_PID=
BOOTS=0
# Loaded before the root is mounted, each after its dependencies.
GUEST_MODULES=(virtio_pci virtio_blk 9pnet_virtio 9p ext4)

need_machine_tools() {
	need_packages qemu-system-x86_64=qemu-system-x86 setpriv=util-linux nbdkit=nbdkit mkfs.xfs=xfsprogs jq=jq
	[ -e "$(nbdkit --dump-config | sed -n 's/^filterdir=//p')/nbdkit-cache-filter.so" ] ||
		die "nbdkit has no cache filter: install its basic filters"
}

build_guest_initramfs() {
	local kernel release busybox tree=$RUN_DIR/initramfs.d module file
	local -A seen=()
	kernel=$(kernel_dir trixie-backports)
	release=$(<"$kernel/release")
	busybox=$(static_busybox)
	mkdir -p "$tree"/{bin,dev,proc,modules,root}
	install -m 755 "$busybox" "$tree/bin/busybox"
	install -m 755 "$REPOSITORY/scripts/lib/system/init" "$tree/init"
	for module in "${GUEST_MODULES[@]}"; do
		while read -r file; do
			if [ -z "$file" ] || [ -n "${seen[$file]:-}" ]; then continue; fi
			seen[$file]=yes
			cp "$file" "$tree/modules/"
			echo "${file##*/}" >>"$tree/modules/order"
		done < <(modprobe -d "$kernel" -S "$release" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p')
	done
	(cd "$tree" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$RUN_DIR/initramfs"
	rm -rf "$tree"
}

# prepare_machine CACHE-SIZE: the disks and the directory shared with the guest.
prepare_machine() {
	mkdir -p "$RUN_DIR/host"
	build_guest_initramfs
	cp --sparse=always --reflink=auto "$IMAGE" "$RUN_DIR/root.ext4"
	truncate -s "$1" "$RUN_DIR/cache.raw"
	mkfs.xfs -q "$RUN_DIR/cache.raw"
}

# start_detached COMMAND…: starts process STARTED in a session of its own, so that Ctrl-C reaches only this script. The process ends
# with this script, even if the script is killed.
start_detached() {
	setsid setpriv --pdeathsig KILL "$@" </dev/null &
	STARTED=$!
}

start_cache_disk() {
	local waited
	rm -f "$RUN_DIR/cache.sock"
	# Blocks of nbdkit's cache have the size of a guest's page: a flushed page never takes an unflushed neighbour along.
	TMPDIR=$RUN_DIR start_detached nbdkit --foreground --exit-with-parent --unix "$RUN_DIR/cache.sock" \
		--filter=cache file "$RUN_DIR/cache.raw" cache=writeback cache-min-block-size=4096 \
		>"$RUN_DIR/cache.log" 2>&1
	NBDKIT_PID=$STARTED
	for ((waited = 0; waited < 600; waited++)); do
		[ ! -S "$RUN_DIR/cache.sock" ] || return 0
		kill -0 "$NBDKIT_PID" 2>/dev/null || break
		sleep 0.1
	done
	die "nbdkit did not start: $(cat "$RUN_DIR/cache.log")"
}

start_machine() {
	local kernel arguments
	kernel=$(kernel_dir trixie-backports)
	BOOTS=$((BOOTS + 1))
	CONSOLE=$RUN_DIR/console.$BOOTS
	# No watchdogs of the kernel: watchdogs would take a busy host for a hung guest.
	arguments="console=ttyS0 panic=-1 oops=panic nowatchdog rcupdate.rcu_cpu_stall_suppress=1 mitigations=off tsc=reliable"
	arguments+=" net.ifnames=0 loglevel=4 systemd.show_status=yes systemd.log_color=no ${MACHINE_ARGUMENTS:-}"
	start_detached qemu-system-x86_64 -name glidefs-system -nodefaults -no-user-config -display none -no-reboot \
		-machine q35 -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp 2 -m 2048M \
		-kernel "$kernel/kernel" -initrd "$RUN_DIR/initramfs" -append "$arguments" \
		-chardev "file,id=console,path=$CONSOLE" -serial chardev:console \
		-drive "file=$RUN_DIR/root.ext4,if=none,id=root,format=raw,cache=writeback" \
		-device virtio-blk-pci,drive=root \
		-drive "file=nbd:unix:$RUN_DIR/cache.sock,if=none,id=cache,format=raw,cache=writeback" \
		-device virtio-blk-pci,drive=cache \
		-fsdev "local,id=modules,path=$kernel/lib/modules/$(<"$kernel/release"),security_model=none,readonly=on" \
		-device virtio-9p-pci,fsdev=modules,mount_tag=modules \
		-fsdev "local,id=host,path=$RUN_DIR/host,security_model=none" \
		-device virtio-9p-pci,fsdev=host,mount_tag=host \
		>"$RUN_DIR/qemu.log" 2>&1
	QEMU_PID=$STARTED
}

systemd_has_started() { grep -aq 'Welcome to' "$CONSOLE" 2>/dev/null; }
# Also where the machine ends without.
daemon_has_started() { grep -aqE 'Starting glidefs.service|poweroff.target' "$CONSOLE" 2>/dev/null; }
checks_have_begun() { [ -e "$RUN_DIR/host/log" ]; }

# boot CONDITION: returns when the condition holds. A kernel that dies before has changed nothing of what the checks are about, and the
# boot is begun again: QEMU before 8.1 may run an instruction that the kernel has just replaced, which is fatal while the processors
# and the first services start.
boot() {
	local try condition=$1
	start_cache_disk
	for ((try = 1; try <= BOOT_TRIES; try++)); do
		start_machine
		# shellcheck disable=SC2153 # scripts/system-test sets DEADLINE
		while machine_runs && ! "$condition" && [ $SECONDS -lt "$DEADLINE" ]; do
			sleep 0.2
		done
		if machine_runs || "$condition"; then return 0; fi
		say "the kernel died while it booted (try $try of $BOOT_TRIES): $(grep -am 1 -E 'Oops|int3:|Kernel panic' "$CONSOLE")"
	done
}

machine_runs() { [ -n "$QEMU_PID" ] && kill -0 "$QEMU_PID" 2>/dev/null; }

# cut_power [COMMAND…]: ends machine and disk, for the guest at the same time: the disk is stopped first, and answers nothing more. Then
# COMMAND may look at what the disk has not flushed, and keep some.
cut_power() {
	kill -STOP "$NBDKIT_PID"
	kill -KILL "$QEMU_PID" 2>/dev/null || true
	wait "$QEMU_PID" 2>/dev/null || true
	"$@"
	kill -KILL "$NBDKIT_PID"
	wait "$NBDKIT_PID" 2>/dev/null || true
	QEMU_PID='' NBDKIT_PID=''
}

# wait_power_off SECONDS: status 1 if the machine still runs then.
wait_power_off() {
	local deadline=$((SECONDS + $1))
	while machine_runs; do
		[ $SECONDS -lt $deadline ] || return 1
		sleep 0.2
	done
}

end_machine() {
	local pid
	for pid in $QEMU_PID $NBDKIT_PID; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	QEMU_PID='' NBDKIT_PID=''
}
