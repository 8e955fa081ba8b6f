# The stages of scripts/test: a row "NAME  description" and a function stage_NAME or long_NAME for each. Sourced, never run.
# Needs common.sh, checks.sh and package.sh; the working directory is the repository.
# shellcheck shell=bash
# shellcheck disable=SC2034 # scripts/test reads the rows

# In the order of a whole run.
STAGES=(
	"lints                format, lints, documents, shell scripts"
	"deny                 licenses, sources, versions and known defects of dependencies"
	"release              the program as it is shipped"
	"unit                 unit, model, crash and layout tests"
	"fuzz                 every fuzz target, for a bounded number of runs"
)
MACHINE_STAGES=(
	"fio-verify           real devices, Linux of trixie-backports"
	"recovery             kill -9 under load, Linux of trixie-backports"
	"upgrade              the daemon goes on as another program under load, and as programs that fail, Linux of trixie-backports"
	"store-tier           a cache in front of a store"
	"trace                requests traced on real devices, compared with fio"
	"take-over            two daemons and one export"
	"faults               disks, stores and mounts that fail under a daemon"
	"fio-verify-trixie    real devices, Linux of trixie"
	"bad-input            requests, configurations and caches that are refused"
	"fio-verify-bookworm  real devices without USER_COPY, Linux of bookworm"
	"numa                 buffers on two NUMA nodes"
	"density              many exports"
	"system-test          a host with systemd, udev, journald and Prometheus"
)
LONG_STAGES=(
	"crash                10,000 histories of hosts and a store that fail, 12,000 crashes of a cache; GLIDEFS_HISTORIES sets others (100 minutes)"
	"churn                600 exports created, written, detached and deleted in a loop; CHURN_MINUTES sets another time (60 minutes)"
	"density              1,025 exports with devices on one host, killed and recovered                                 (15 minutes)"
	"take-over            100 rounds of two hosts that race for one export                                             (45 minutes)"
	"engines              kill -9 under load with the engine direct, on two kernels                                    (15 minutes)"
	"store                8 GiB through a cache of 1 GiB and an S3 server                                              (60 minutes)"
	"faults               every case of scripts/faults, with an outage of the store of ten minutes                     (25 minutes)"
	"worst                fio on 2,000 devices with arenas of 8 slots, a full cache and an absent store; WORST_DEVICES (40 minutes)"
	"fairness             how much one export hurts its neighbours, under the instruction clock                        (10 minutes)"
	"power-cuts           20 power cuts under ext4, XFS and SQLite; POWER_CUTS sets another number, POWER_CUTS_SEED a seed (30 minutes)"
	"api                  load on the API of a host with 5,000 exports, beside fio                                     (20 minutes)"
	"package              the Debian package: installed, upgraded under load, removed and purged on a whole system     (10 minutes)"
	"outer                system-test with every outer thing broken, at a start, a restart and an upgrade, and while running (20 minutes)"
	"page                 the status page in Chromium, each figure compared with the API; glidefs top in a terminal    (10 minutes)"
	"client               a Python client made from the description of the API, used over TCP and the Unix socket      (10 minutes)"
	"containers           volumes and devices of Podman and Docker: the commands of docs/containers.md                 (5 minutes)"
	"servers              glidefs store test against four S3 servers, of which two break a rule                        (5 minutes)"
	"csi                  csi-sanity against the CSI driver on real devices, checks of our own, manifests of Kubernetes (40 minutes)"
	"benches              every bench, and the scripts of figures that need no device, in a short form                (20 minutes)"
	"figures              scripts/run, and the scripts of figures that need devices, each in a short form             (20 minutes)"
	"reproducible         two builds and packages of the last commit, in different folders, and the list of dependencies (30 minutes)"
)

# need_machine_packages: installs the programs of checks in virtual machines. A virtual machine uses the host's programs, and has no
# network to install others.
need_machine_packages() {
	need_packages fio=fio jq=jq curl=curl dmsetup=dmsetup mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs mkfs.ext4=e2fsprogs python3=python3 b3sum=b3sum
}

# tools_of STAGE: installs the tools that the stage needs besides those for building.
tools_of() {
	case $1 in
	lints) need_packages shellcheck=shellcheck ;;
	release | deny) ;;
	unit)
		need_packages promtool=prometheus python3=python3
		# The tests need the package's promtool, not its server.
		systemctl disable --now prometheus >/dev/null 2>&1 || true
		;;
	fuzz) need_packages c++=build-essential jq=jq ;;
	*) need_machine_packages ;;
	esac
}

stage_lints() {
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --all-features --no-deps --document-private-items --quiet
	lint_shell
	scripts/csi-test manifests
}
stage_deny() { need_cargo_deny && check_dependencies; }
stage_release() { build_release; }
# ahead_of_release: what the stages deny and release build, beside the lints: a compiler works on one processor for most of a crate.
# What fails here fails again in its stage, which waits for Cargo's lock.
ahead_of_release() { { need_cargo_deny && build_release; } </dev/null >/dev/null 2>&1; }
stage_unit() {
	# Installs the S3 server while the tests are built; it ends with its standard input.
	scripts/lib/s3-server </dev/null >/dev/null 2>&1 &
	# Tests wait about as long as they compute.
	RUST_TEST_THREADS=$((2 * $(nproc))) GLIDEFS_HISTORIES=${GLIDEFS_HISTORIES:-30} cargo test --locked --workspace
}
stage_fuzz() { scripts/fuzz; }

# in_vm OPTION… -- COMMAND…: in a virtual machine with a disk of 8 GiB, with the program built.
in_vm() {
	build_release
	scripts/vm exec --disk 8G "$@"
}

stage_fio_verify() { in_vm --timeout 1200 -- scripts/fio-verify; }
stage_recovery() { in_vm --timeout 600 -- scripts/recovery; }
stage_upgrade() { in_vm --timeout 1200 -- scripts/upgrade 2; }
# With so small a cache there is one worker; the other processor is for fio and the writeback.
stage_store_tier() { in_vm --timeout 1500 -- scripts/store-tier --cache 320; }
stage_trace() { in_vm --timeout 900 -- scripts/trace-test; }
stage_take_over() { in_vm --s3 --timeout 900 -- scripts/take-over 3; }
stage_faults() {
	in_vm --s3 --timeout 1500 -- scripts/faults
}
# All cases run on the newest kernel, those that the kernel may change on the others. Bounce mode runs on the newest and the oldest.
stage_fio_verify_trixie() { in_vm --kernel trixie --timeout 600 -- scripts/fio-verify --mode user-copy random mixed-size trim-zero restart ext4; }
stage_bad_input() { in_vm --kernel trixie --timeout 600 -- scripts/bad-input; }
stage_fio_verify_bookworm() { in_vm --kernel bookworm --timeout 600 -- scripts/fio-verify random; }
stage_numa() {
	local test
	# With the features of the stage unit, so that nothing is compiled anew.
	test=$(cargo test --locked --workspace --test numa --no-run --message-format=json | jq -r 'select(.executable != null and .target.name == "numa").executable')
	GLIDEFS_TEST_NUMA=1 scripts/vm exec --cpus 4 --numa 2 --timeout 300 -- "$test"
}
stage_density() { in_vm --timeout 600 -- scripts/density 65 60 --busy 8 --seconds 1 --settle 2; }
stage_system_test() {
	build_release
	scripts/system-test
}

long_crash() {
	# Optimized, with all its assertions.
	local optimized=(--config profile.dev.opt-level=1 --config profile.dev.package.glidefs.opt-level=2)
	GLIDEFS_CRASH_ROUNDS=${GLIDEFS_CRASH_ROUNDS:-12000} cargo test --locked "${optimized[@]}" --test crash -- --nocapture &&
		GLIDEFS_HISTORIES=${GLIDEFS_HISTORIES:-10000} cargo test --locked "${optimized[@]}" --lib daemon::tests::model::histories::host_and_store -- --nocapture
}
long_churn() { scripts/vm exec --disk 8G --memory 4G --timeout 7200 -- scripts/churn "${CHURN_MINUTES:-60}"; }
long_density() { scripts/vm exec --disk 16G --memory 8G --timeout 3600 -- scripts/density 1025 --output target/vm/share/density-1025.json; }
long_take_over() { scripts/vm exec --s3 --disk 8G --timeout 10800 -- scripts/take-over 100; }
long_engines() {
	GLIDEFS_CACHE_ENGINE=direct in_vm --timeout 600 -- scripts/fio-verify --mode user-copy random mixed-size restart &&
		GLIDEFS_CACHE_ENGINE=direct in_vm --timeout 600 -- scripts/recovery &&
		GLIDEFS_CACHE_ENGINE=direct in_vm --kernel trixie --timeout 600 -- scripts/recovery
}
long_store() { scripts/vm exec --s3 --disk 16G --timeout 14400 -- scripts/store-tier --s3 --cache 1024 --size 8192; }
long_faults() {
	scripts/vm exec --s3 --disk 8G --timeout 5400 -- scripts/faults --outage 600
	scripts/vm exec --s3 --disk 8G --timeout 1800 -- scripts/faults slow-line
}
long_worst() { scripts/vm exec --disk 16G --memory 12G --s3 --timeout 7200 -- scripts/worst "${WORST_DEVICES:-2000}" --output target/vm/share/worst.json; }
long_fairness() { scripts/fairness; }
long_power_cuts() { scripts/power-cuts --cuts "${POWER_CUTS:-20}" ${POWER_CUTS_SEED:+--seed "$POWER_CUTS_SEED"}; }
long_api() { scripts/vm exec --disk 8G --memory 8G --timeout 7200 -- scripts/api-load 5000; }
long_package() { scripts/package-test; }
long_outer() { build_release && scripts/system-test --all --time-limit 2400; }
long_page() { scripts/page-test; }
long_client() { scripts/client-test; }
long_containers() { scripts/containers-test; }
long_servers() { scripts/servers; }
long_csi() { scripts/csi-test; }
long_benches() {
	need_packages valgrind=valgrind jq=jq
	local baselines=target/bench-short/baselines
	export GLIDEFS_SHORT=1
	cargo test --locked --workspace --benches
	scripts/store-cost 16
	scripts/bench-file
	scripts/bench-holds
	scripts/bench-baseline $baselines small
	scripts/bench-compare $baselines $baselines
}
long_figures() {
	scripts/run --once
	scripts/bench-device --short
	scripts/bench-depth --devices 4 16
	scripts/pauses 1
}
long_reproducible() { check_reproducible; }
