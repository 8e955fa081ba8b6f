# The parts of scripts/package: the reproducible build, and the tools. Sourced, never run.
# Needs common.sh; the working directory is the root of the source.
# shellcheck shell=bash
# shellcheck disable=SC2034 # scripts/package and stages.sh use the versions

CARGO_DEB_VERSION=3.8.0
CARGO_GENERATE_RPM_VERSION=0.21.1
CARGO_CYCLONEDX_VERSION=0.5.9
PACKAGE_TOOLS=$REPOSITORY/target/tools/bin

# need_package_tool NAME VERSION: builds a tool once, into target/tools. Not optimized: the compiler takes longer than the tool.
need_package_tool() {
	[ "$(package_tool_version "$1")" != "$2" ] || return 0
	say "installing $1 $2"
	cargo install --quiet --locked --debug --root "$REPOSITORY/target/tools" --version "=$2" "$1"
}

# package_tool_version NAME: the version that is installed, from cargo's own list.
package_tool_version() {
	cargo install --list --root "$REPOSITORY/target/tools" 2>/dev/null | sed -n "s/^$1 v\([^ :]*\).*/\1/p"
}

# export_source_date: all times in binaries and packages are the time of the last commit.
export_source_date() {
	SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
	export SOURCE_DATE_EPOCH
}

# build_reproducibly: the programs in target/package/release, without the paths of the source and of the home of cargo. Paths of
# this machine are replaced in panic messages and in line tables, of Rust and of C. In a folder of its own, as other flags build all anew.
build_reproducibly() {
	local source home registry sysroot
	source=$(pwd -P)
	home=$(readlink -f "${CARGO_HOME:-$HOME/.cargo}")
	# Compilers run in the folders of the sources, whose paths have no links.
	registry=$(readlink -f "$home/registry")
	sysroot=$(rustc --print sysroot)
	export_source_date
	(
		# The last prefix that fits is used: the longer ones come last.
		export RUSTFLAGS="--remap-path-prefix=$sysroot=/usr/src/rust --remap-path-prefix=$home=/usr/src/cargo \
			--remap-path-prefix=$registry=/usr/src/cargo/registry --remap-path-prefix=$source=/usr/src/glidefs -Clink-arg=-Wl,--build-id=sha1"
		export CFLAGS="-ffile-prefix-map=$home=/usr/src/cargo -ffile-prefix-map=$registry=/usr/src/cargo/registry -ffile-prefix-map=$source=/usr/src/glidefs"
		export CXXFLAGS=$CFLAGS
		cargo build --release --locked --bin glidefs --bin glidefs-bench --target-dir target/package
	)
}

# check_reproducible: makes the packages of the last commit here and in another folder, with another home of cargo, and compares them.
# The other home has the same sources of crates, by hard links: a machine's crates need not be fetched again.
check_reproducible() {
	local home work other file status=0
	[ -z "$(git status --porcelain)" ] || die "the work tree has changes: commit them"
	scripts/package
	home=$(readlink -f "${CARGO_HOME:-$HOME/.cargo}")
	work=$(mktemp -d "$(dirname "$home")/glidefs-reproducible.XXXXXX")
	other=$work/elsewhere/glidefs
	git clone --quiet "$REPOSITORY" "$other"
	mkdir -p "$other/target" "$work/cargo"
	ln -s "$REPOSITORY/target/tools" "$other/target/tools"
	cp -al "$home/registry" "$work/cargo/"
	for file in "$home"/config*; do [ ! -e "$file" ] || ln -s "$file" "$work/cargo/"; done
	(cd "$other" && CARGO_HOME=$work/cargo scripts/package)
	compare_packages target/package "$other/target/package" || status=1
	rm -rf "$work"
	return $status
}

# compare_packages ONE OTHER: compares the programs, and all packages of the newest version, byte for byte.
compare_packages() {
	local file differ=0 count=0
	for file in release/glidefs release/glidefs-bench $(cd "$2" && find . -maxdepth 1 -type f -name 'glidefs*' -printf '%f\n' | sort); do
		count=$((count + 1))
		if cmp "$1/$file" "$2/$file" >&2; then
			say "the same: $(sha256sum "$1/$file")"
		else
			differ=$((differ + 1))
		fi
	done
	printf 'reproducible: %d passed, %d failed\n' $((count - differ)) $differ
	[ $differ -eq 0 ] && [ $count -gt 4 ]
}
