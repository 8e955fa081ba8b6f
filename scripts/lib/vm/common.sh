# shellcheck shell=bash
# Shared by the parts of scripts/vm: paths, messages, and the installation of missing tools.
# Sourced by scripts/vm, which sets REPOSITORY.
# shellcheck disable=SC2034 # the other parts read these names

VM_HOME=$REPOSITORY/target/vm
VM_SHARE=$VM_HOME/share
VM_LIB=$REPOSITORY/scripts/lib/vm

# Exit status for a VM that failed, as opposed to a command that failed in the VM; and for a VM that ran out of time.
readonly STATUS_VM_FAILED=125 STATUS_TIMEOUT=124
# How often a VM is booted, at most, whose kernel dies before the command begins.
readonly BOOT_TRIES=3

say() {
	printf 'vm: %s\n' "$*" >&2
}

die() {
	say "$*"
	exit "$STATUS_VM_FAILED"
}

# Retries a command that depends on the network: four attempts, with 2, 4 and 8 seconds between them.
retry() {
	local delay_seconds=2 attempt
	for attempt in 1 2 3; do
		if "$@"; then
			return 0
		fi
		say "attempt $attempt failed, next one in $delay_seconds s: $1 ${2-}"
		sleep "$delay_seconds"
		delay_seconds=$((delay_seconds * 2))
	done
	"$@"
}

# apt-get of the machine itself; prints only the end of a failed run.
machine_apt() {
	local log
	log=$(mktemp)
	if DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 "$@" >"$log" 2>&1; then
		rm -f "$log"
		return 0
	fi
	tail -n 20 "$log" >&2
	rm -f "$log"
	return 1
}

install_packages() {
	local command="apt-get install -y --no-install-recommends $*"
	if ((EUID != 0)); then
		die "missing tools; install them with: sudo $command"
	fi
	say "installing $*"
	# The lists may be missing (a fresh container) or too old for the mirror: fetch the lists, then retry.
	if ! machine_apt install -y --no-install-recommends "$@" 2>/dev/null; then
		retry machine_apt update || die "apt-get update failed; once it works: $command"
		retry machine_apt install -y --no-install-recommends "$@" || die "could not install; try: $command"
	fi
}

# need_tools COMMAND=PACKAGE…: installs the Debian packages whose command is missing.
need_tools() {
	local pair missing=()
	# Tools for administrators are outside an ordinary user's search path.
	if [[ :$PATH: != *:/usr/sbin:* ]]; then
		PATH=$PATH:/usr/sbin:/sbin
	fi
	for pair in "$@"; do
		if ! command -v "${pair%%=*}" >/dev/null; then
			missing+=("${pair#*=}")
		fi
	done
	if ((${#missing[@]} > 0)); then
		install_packages "${missing[@]}"
		hash -r
	fi
}
