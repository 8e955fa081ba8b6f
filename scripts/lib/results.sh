# Result files: figures with their origin. Sourced, never run. Needs common.sh, jq and git.
# A result file is an object {figures, date, commit, changed, kernel, machine, command, measures, results}: `figures` is the name of
# the file, `changed` tells that the measured paths differed from the commit, `measures` lists those paths. Tables of documents
# are copied from these files by hand.
# shellcheck shell=bash

# machine_name: processors and memory of this machine. An emulated processor says so in its name.
machine_name() {
	local processor memory_gib
	processor=$(awk -F ': ' '/^(model name|Model)/ { print $2; exit }' /proc/cpuinfo | tr -s ' ')
	memory_gib=$(awk '/^MemTotal:/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)
	printf '%s × %s, %s GiB of memory\n' "$(nproc)" "${processor:-$(uname -m)}" "$memory_gib"
}

# git_here ARGUMENT…: git on the repository, whose files may belong to another user in a virtual machine.
git_here() { git -c safe.directory='*' -C "$REPOSITORY" --no-optional-locks "$@"; }

# can_write_results FILE: ends the script where write_results would, before the time for measuring is spent.
can_write_results() {
	git_here rev-parse HEAD >/dev/null || die "a result file names a commit: git does not work here"
	mkdir -p "$(dirname "$1")"
	: >"$1.new" || die "$1 cannot be written"
}

# write_results FILE COMMAND PATH…: writes a result file with the JSON of standard input as results, measured by COMMAND; PATHs,
# relative to the repository, hold the code that was measured.
write_results() {
	local file=$1 command=$2 commit changed=false
	shift 2
	commit=$(git_here rev-parse HEAD)
	[ -z "$(git_here status --porcelain --untracked-files=no -- "$@")" ] || changed=true
	jq --arg figures "$(basename "$file" .json)" --arg date "$(date -u +%FT%TZ)" --arg commit "$commit" --argjson changed $changed \
		--arg kernel "$(uname -r)" --arg machine "$(machine_name)" --arg command "$command" \
		'{figures: $figures, date: $date, commit: $commit, changed: $changed, kernel: $kernel, machine: $machine,
			command: $command, measures: $ARGS.positional, results: .}' --args -- "$@" >"$file.new"
	mv "$file.new" "$file"
	say "wrote $file"
}
