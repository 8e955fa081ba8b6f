//! The place of a buffer pool's memory: every page is on the NUMA node of the thread which made the pool.
//!
//! Owns a program instead of using the test harness, because the test pins threads and must name the machine's nodes. With one
//! node the test checks that node. With `GLIDEFS_TEST_NUMA=1` the test asks for two nodes, and fails where there are fewer: on
//! one node every placement is right, and a success would prove nothing.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use glidefs::testing::buffer::Pool;
use glidefs::testing::observe::io::WorkerStats;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Asks for two nodes.
const VARIABLE: &str = "GLIDEFS_TEST_NUMA";
/// How to have two nodes.
const COMMAND: &str = "scripts/vm exec --cpus 4 --numa 2 -- env GLIDEFS_TEST_NUMA=1 cargo test --test numa";
/// Slots of 128 KiB in each pool: an arena of 16 MiB.
const SLOTS: usize = 128;
const PAGE_BYTES: usize = 4096;

/// A NUMA node, and the node's first CPU which this process may use.
#[derive(Clone, Copy)]
struct Node {
    id: usize,
    cpu: usize,
}

fn main() -> ExitCode {
    println!("\nrunning 1 test");
    let (outcome, code) = match every_page_of_a_pool_is_on_the_node_of_its_thread() {
        Ok(()) => ("ok. 1 passed; 0 failed", ExitCode::SUCCESS),
        Err(reason) => {
            println!("{reason}");
            ("FAILED. 0 passed; 1 failed", ExitCode::FAILURE)
        }
    };
    println!("test result: {outcome}; 0 ignored; 0 measured; 0 filtered out\n");
    code
}

fn every_page_of_a_pool_is_on_the_node_of_its_thread() -> Result<(), String> {
    let nodes = nodes()?;
    if two_nodes_are_asked_for()? && nodes.len() < 2 {
        return Err(format!(
            "{VARIABLE}=1 asks for two NUMA nodes, and {} can be used here. Run:\n  {COMMAND}",
            nodes.len()
        ));
    }
    // All nodes at the same time, as the workers of a daemon make their pools.
    let checks = nodes.into_iter().map(|node| thread::spawn(move || check(node))).collect::<Vec<_>>();
    for check in checks {
        println!("{}", check.join().map_err(|_| "a checking thread panicked")??);
    }
    Ok(())
}

/// Pins this thread to a node, makes a pool and asks the kernel where each page is.
fn check(node: Node) -> Result<String, String> {
    let mut cpus = CpuSet::new();
    cpus.set(node.cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus)).map_err(told("pinning"))?;
    let stats = Arc::new(WorkerStats::default());
    let pool = Pool::new(SLOTS, Arc::clone(&stats)).map_err(told("making a pool"))?;
    let (address, bytes) = pool.arena();
    if bytes == 0 || stats.pool.arena_bytes.get() != bytes as u64 {
        return Err(format!("an arena of {bytes} bytes is counted as {}", stats.pool.arena_bytes.get()));
    }
    let placed = nodes_of_pages(address, bytes)?;
    let pages = placed.len();
    let elsewhere = placed.iter().filter(|&&at| usize::try_from(at) != Ok(node.id)).count();
    if elsewhere > 0 {
        let (page, at) =
            placed.iter().enumerate().find(|&(_, &at)| usize::try_from(at) != Ok(node.id)).unwrap_or((0, &0));
        return Err(format!(
            "of {pages} pages of a pool made on node {} (CPU {}), {elsewhere} are not there: page {page} is at {at} \
             (a node, or a negative errno)",
            node.id, node.cpu
        ));
    }
    Ok(format!(
        "test a pool made on node {}, CPU {}: all {pages} pages are on node {} ... ok",
        node.id, node.cpu, node.id
    ))
}

/// The node each page is on, or a negative errno where there is none. Moves nothing.
fn nodes_of_pages(address: *const u8, bytes: usize) -> Result<Vec<i32>, String> {
    let pages: Vec<*const u8> =
        (0..bytes).step_by(PAGE_BYTES).map(|offset| address.wrapping_add(offset)).collect();
    let mut status = vec![i32::MIN; pages.len()];
    // SAFETY: without a list of nodes the call only reports. The call reads `pages` and writes `status`, which have
    // `pages.len()` elements each; the addresses in `pages` are looked up, not accessed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if result == 0 { Ok(status) } else { Err(told("move_pages")(std::io::Error::last_os_error())) }
}

/// The nodes with memory and a CPU which this process may use.
fn nodes() -> Result<Vec<Node>, String> {
    const ROOT: &str = "/sys/devices/system/node";
    let read = |path: String| fs::read_to_string(&path).map_err(told(&path));
    let allowed = sched_getaffinity(Pid::from_raw(0)).map_err(told("sched_getaffinity"))?;
    let mut nodes = Vec::new();
    for id in numbers(&read(format!("{ROOT}/has_memory"))?)? {
        let cpus = numbers(&read(format!("{ROOT}/node{id}/cpulist"))?)?;
        let usable = cpus.into_iter().find(|&cpu| allowed.is_set(cpu).unwrap_or(false));
        nodes.extend(usable.map(|cpu| Node { id, cpu }));
    }
    if nodes.is_empty() { Err(format!("{ROOT} names no node with memory and a CPU")) } else { Ok(nodes) }
}

/// The numbers of a list such as `0-2,5`.
fn numbers(list: &str) -> Result<Vec<usize>, String> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number =
            |text: &str| text.parse::<usize>().map_err(|_| format!("{list:?} is not a list of numbers"));
        numbers.extend(number(first)?..=number(last)?);
    }
    Ok(numbers)
}

fn two_nodes_are_asked_for() -> Result<bool, String> {
    match std::env::var(VARIABLE) {
        Ok(value) if value == "1" => Ok(true),
        Ok(value) if value == "0" => Ok(false),
        Err(std::env::VarError::NotPresent) => Ok(false),
        other => Err(format!("{VARIABLE} must be 0 or 1, not {other:?}")),
    }
}

/// Adds the failed step to an error.
fn told<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}
