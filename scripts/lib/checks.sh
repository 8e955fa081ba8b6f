# Checks of scripts/test that are more than one command: shell scripts and dependencies. Sourced, never run.
# Needs common.sh; the working directory is the repository.
# shellcheck shell=bash

# deny.toml is written for this version.
CARGO_DENY_VERSION=0.20.2
CARGO_DENY=$REPOSITORY/target/tools/bin/cargo-deny
ADVISORIES=https://github.com/RustSec/advisory-db

# shell_files: prints the path of every shell script of the work tree, also of a new file that is not committed: a file named *.sh,
# or a file whose first line names a shell.
shell_files() {
	local file first
	git ls-files --cached --others --exclude-standard | sort -u | while IFS= read -r file; do
		# A file that was deleted is listed until the deletion is committed.
		[ -f "$file" ] || continue
		IFS= read -r first <"$file" || true
		if [[ $file == *.sh || $first =~ ^#!.*[/[:space:]](ba|da|k)?sh([[:space:]]|$) ]]; then printf '%s\n' "$file"; fi
	done
}

lint_shell() {
	local files
	mapfile -t files < <(shell_files)
	[ ${#files[@]} -gt 20 ] || die "only ${#files[@]} shell scripts were found: git ls-files does not work here"
	say "shellcheck: ${#files[@]} files"
	shellcheck -x "${files[@]}"
}

# need_cargo_deny: builds cargo-deny once, into target/tools. Not optimized: the checks take a second either way, and the compiler half
# the time.
need_cargo_deny() {
	[ "$("$CARGO_DENY" --version 2>/dev/null)" != "cargo-deny $CARGO_DENY_VERSION" ] || return 0
	say "installing cargo-deny $CARGO_DENY_VERSION"
	cargo install --quiet --locked --debug --root "$REPOSITORY/target/tools" --version "=$CARGO_DENY_VERSION" cargo-deny
}

# check_dependencies: checks every workspace of the repository against deny.toml. Known defects are in a database of the network:
# where the database cannot be reached, all else is checked, and the gap is printed.
check_dependencies() {
	local lock locks manifest checks=(licenses bans sources)
	if GIT_TERMINAL_PROMPT=0 timeout 30 git ls-remote --quiet "$ADVISORIES" HEAD >/dev/null 2>&1; then checks+=(advisories); fi
	mapfile -t locks < <(git ls-files '*Cargo.lock')
	[ ${#locks[@]} -gt 0 ] || die "no Cargo.lock was found: git ls-files does not work here"
	for lock in "${locks[@]}"; do
		manifest=$(dirname "$lock")/Cargo.toml
		say "cargo deny check ${checks[*]}: $manifest"
		"$CARGO_DENY" --locked --manifest-path "$manifest" --config deny.toml check "${checks[@]}"
	done
	[[ ${checks[*]} == *advisories* ]] ||
		say "NOT CHECKED: known defects (RustSec) and withdrawn versions of dependencies: $ADVISORIES cannot be reached from here"
}
