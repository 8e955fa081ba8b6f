# An S3 server for a script. Sourced, never run. Needs REPOSITORY and die.
# shellcheck shell=bash

# s3_server: exports AWS_… and BUCKET with the names of an S3 server, which is started here and ends with the script. Where BUCKET
# is set already, nothing is done.
s3_server() {
	local line
	[ -z "${BUCKET:-}" ] || return 0
	coproc S3_SERVER { "$REPOSITORY/scripts/lib/s3-server"; }
	while read -r line <&"${S3_SERVER[0]}" && [ "$line" != ready ]; do
		export "${line?}"
	done
	[ -n "${BUCKET:-}" ] || die "the S3 server did not start"
}
