# The tools of scripts/client-test, in target/tools: the generator of the client, with the libraries of the client, and a checker of
# types. Sourced, never run. Needs common.sh and venv.sh.
# shellcheck shell=bash

# Versions with which the tests pass.
OPENAPI_PYTHON_CLIENT_VERSION=0.29.1
MYPY_VERSION=2.4.1
CLIENT_TOOLS=$REPOSITORY/target/tools/openapi-client

need_client_tools() {
	need_venv "$CLIENT_TOOLS" "openapi-python-client==$OPENAPI_PYTHON_CLIENT_VERSION" "mypy==$MYPY_VERSION"
}

# make_client DESCRIPTION FOLDER: the Python package FOLDER. The generator formats its code with ruff, which it looks for in PATH.
make_client() { PATH=$CLIENT_TOOLS/bin:$PATH openapi-python-client generate --path "$1" --meta none --output-path "$2" >"$2.log" 2>&1 || { cat "$2.log" && return 1; }; }

# check_types FOLDER PROGRAM: the types of PROGRAM, and of the package in FOLDER.
check_types() { (cd "$1" && MYPYPATH=$1 "$CLIENT_TOOLS/bin/mypy" --config-file "$REPOSITORY/scripts/lib/client/mypy.ini" --cache-dir "$1/mypy" "$2" glidefs_client); }
