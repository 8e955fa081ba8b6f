# Shared by the scripts that build, install and check. Sourced, never run.
# shellcheck shell=bash

REPOSITORY=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd -P)

# The program under test, which must be built before a script runs inside a virtual machine.
# shellcheck disable=SC2034
GLIDEFS=${GLIDEFS_BIN:-$REPOSITORY/target/release/glidefs}

say() { printf '%s\n' "$*" >&2; }
die() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}

# step TITLE: a heading with the time since the script began.
STEP_STARTED=$SECONDS
step() { printf '\n== %s  (%d s)\n' "$*" $((SECONDS - STEP_STARTED)) >&2; }

# need_packages COMMAND=PACKAGE…: installs the Debian packages whose command is missing.
need_packages() {
	local pair missing=()
	for pair in "$@"; do
		command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
	done
	[ ${#missing[@]} -eq 0 ] && return 0
	[ "$(id -u)" -eq 0 ] || die "missing: run as root: apt-get install -y ${missing[*]}"
	command -v apt-get >/dev/null || die "missing, and there is no apt-get here: install ${missing[*]}"
	say "installing ${missing[*]}"
	apt-get update -q >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
}

# need_build_tools: installs compilers, libclang (for bindgen; a library has no command, so dpkg is asked) and cargo.
need_build_tools() {
	need_packages cc=build-essential clang=clang curl=curl
	if ! dpkg-query -W -f='${Status}\n' 'libclang-dev' 2>/dev/null | grep -q 'ok installed'; then
		[ "$(id -u)" -eq 0 ] || die "missing: run as root: apt-get install -y libclang-dev"
		say "installing libclang-dev"
		apt-get update -q >/dev/null
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends libclang-dev >/dev/null
	fi
	export PATH="$HOME/.cargo/bin:$PATH"
	if ! command -v cargo >/dev/null; then
		if apt-cache show rustup >/dev/null 2>&1; then
			need_packages rustup=rustup
			rustup toolchain install stable --profile default >/dev/null
		else
			curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default >/dev/null
		fi
	fi
	command -v cargo >/dev/null || die "no Rust tool chain: install one from https://rustup.rs"
}

# build_release: the program as it is shipped.
build_release() {
	need_build_tools
	(cd "$REPOSITORY" && cargo build --release --locked --bin glidefs)
}

# build_quick: a program for a first look, built in half the time (profile `quick` in Cargo.toml); sets GLIDEFS_BIN.
build_quick() {
	need_build_tools
	(cd "$REPOSITORY" && cargo build --profile quick --locked --bin glidefs)
	export GLIDEFS_BIN=$REPOSITORY/target/quick/glidefs
}

# cargo_bench NAME ARG…: runs a bench. With GLIDEFS_SHORT=1 in a form that takes seconds and only shows that it works, built as a test.
cargo_bench() {
	if [ -n "${GLIDEFS_SHORT:-}" ]; then
		cargo test --locked --workspace --bench "$@"
	else
		cargo bench --locked --bench "$@"
	fi
}

# bench_folder NAME: where benches leave their figures.
bench_folder() { echo "${CARGO_TARGET_DIR:-$REPOSITORY/target}/$1${GLIDEFS_SHORT:+-short}"; }

have_ublk() { [ -e /dev/ublk-control ] || modprobe ublk_drv 2>/dev/null && [ -e /dev/ublk-control ]; }
