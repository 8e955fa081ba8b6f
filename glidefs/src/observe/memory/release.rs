//! Memory that goes back to the kernel: free memory of the heap, and pages of the program.
//!
//! Owns which pages of the program can be released: those of segments that nobody writes to, of the program and its libraries, so that
//! each page comes back from the file as it was. Does not own when (`daemon/releasing`).

use std::ffi::c_void;
use std::fs;
use std::ptr;
use std::slice;

/// Releases the free memory of the heap that lies in whole pages. The allocator walks through the free blocks under the lock of one of
/// its arenas at a time, and asks the kernel for each run of pages: not for the threads of workers.
pub fn release_heap() {
    // SAFETY: malloc_trim takes no pointers, and glibc locks what the call changes.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Releases the pages of the program and of its libraries: most were in use for the start, or for a batch of requests, alone. A page comes
/// back at the next use, together with its neighbours: from the page cache, where the page stays until the kernel needs the memory, and
/// where the kernel notes that the page was in use. A segment is left alone where a debugger, a probe or the loader has written into it.
pub fn release_program() {
    // Read before the objects are listed: a library loaded since is not in the text.
    let Ok(text) = fs::read_to_string("/proc/self/smaps") else { return };
    let mut unchanged = unchanged(&text);
    // SAFETY: the callback gets the address of `unchanged`, which outlives the call, and never unwinds.
    unsafe { libc::dl_iterate_phdr(Some(release_object), (&raw mut unchanged).cast()) };
}

/// The callback for the program and for each library, none of which goes or comes meanwhile. Returns 0, which asks for the next. `data` is
/// the address of the list of mappings whose pages may be released.
unsafe extern "C" fn release_object(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    data: *mut c_void,
) -> libc::c_int {
    // SAFETY: the loader gives the callback a valid description of the object.
    let object = unsafe { &*object };
    if object.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: so many headers of a loaded object are there, and nobody writes to them.
    let headers = unsafe { slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    // SAFETY: the caller of the loader gave the address of such a list, and does not use it meanwhile.
    let unchanged = unsafe { &*data.cast::<Vec<(usize, usize)>>() };
    for (start, len) in headers.iter().filter_map(|header| pages(object.dlpi_addr, header, page_bytes())) {
        if unchanged.iter().any(|(first, end)| *first <= start && start + len <= *end) {
            // SAFETY: the pages are of one private mapping of a file which has no page that differs from the file, and no code of ours
            // writes into such segments. Reading one gives the same bytes again. A refusal, as for locked memory, changes nothing.
            unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start), len, libc::MADV_DONTNEED) };
        }
    }
    0
}

/// First address, and the one behind the last, of each private mapping of a file none of whose pages was ever written into, in memory or in
/// swap, by the text of `/proc/self/smaps`. The kernel's own object in a process is of no file.
fn unchanged(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    // The present mapping, and how many of the two figures are zero.
    let (mut mapping, mut zeroes) = (None, 0);
    for line in text.lines() {
        let figure = line.strip_prefix("Anonymous:").or_else(|| line.strip_prefix("Swap:"));
        if let Some(figure) = figure {
            zeroes += u32::from(figure.split_whitespace().next() == Some("0"));
            if zeroes == 2 {
                found.extend(mapping.take());
            }
        } else if let Some((addresses, is_private_of_file)) = begins(line) {
            (mapping, zeroes) = (is_private_of_file.then_some(addresses), 0);
        }
    }
    found
}

/// The addresses of the mapping that begins with a line, and whether the mapping is a private one of a file. `None` for the other lines.
fn begins(line: &str) -> Option<((usize, usize), bool)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
    let (permissions, inode) = (fields.next()?, fields.nth(2)?);
    Some(((start?, end?), permissions.ends_with('p') && inode != "0"))
}

/// Address and length of the whole pages of a loaded segment which is not writable. `None` for any other segment, and for one without
/// a whole page.
fn pages(base: u64, header: &libc::Elf64_Phdr, page_bytes: usize) -> Option<(usize, usize)> {
    if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
        return None;
    }
    let first = usize::try_from(base.checked_add(header.p_vaddr)?).ok()?;
    let end = first.checked_add(usize::try_from(header.p_filesz).ok()?)?;
    // The pages at the ends may be shared with a neighbour.
    let (start, end) = (first.checked_next_multiple_of(page_bytes)?, end - end % page_bytes);
    Some((start, end.checked_sub(start).filter(|len| *len > 0)?))
}

/// Size of the kernel's pages, bytes.
pub fn page_bytes() -> usize {
    // SAFETY: the call takes no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1 << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [(usize, usize); 0] = [];

    fn header(p_type: u32, p_flags: u32, p_vaddr: u64, p_filesz: u64) -> libc::Elf64_Phdr {
        libc::Elf64_Phdr {
            p_type,
            p_flags,
            p_offset: 0,
            p_vaddr,
            p_paddr: 0,
            p_filesz,
            p_memsz: p_filesz,
            p_align: 4096,
        }
    }

    #[test]
    fn only_whole_pages_of_segments_nobody_writes_to_are_released() {
        let code = libc::PF_R | libc::PF_X;
        let of = |header| pages(0x10_0000, &header, 4096);
        assert_eq!(of(header(libc::PT_LOAD, code, 0, 0x3000)), Some((0x10_0000, 0x3000)));
        assert_eq!(of(header(libc::PT_LOAD, libc::PF_R, 0x10, 0x2ff0)), Some((0x10_1000, 0x2000)));
        assert_eq!(of(header(libc::PT_LOAD, code, 0x10, 0x1000)), None, "no whole page");
        assert_eq!(of(header(libc::PT_LOAD, code, 0x10, 0x10)), None, "inside one page");
        assert_eq!(of(header(libc::PT_LOAD, libc::PF_R | libc::PF_W, 0, 0x3000)), None);
        assert_eq!(of(header(libc::PT_GNU_RELRO, libc::PF_R, 0, 0x3000)), None);
        assert_eq!(of(header(libc::PT_LOAD, code, u64::MAX, 0x3000)), None);
    }

    #[test]
    fn a_mapping_with_a_page_that_was_written_into_is_not_as_in_the_file() {
        let mapping = |first: &str, anonymous: u32, swap: u32| {
            format!(
                "{first}\nRss: 8 kB\nAnonymous: {anonymous} kB\nKSM: 0 kB\nSwap: {swap} kB\nSwapPss: 0 kB\nVmFlags: rd\n"
            )
        };
        let of = |first: &str, anonymous, swap| unchanged(&mapping(first, anonymous, swap));
        let code = "1000-3000 r-xp 00000000 fe:00 7 /bin/x y";
        assert_eq!(of(code, 0, 0), [(0x1000, 0x3000)]);
        assert_eq!(of(code, 4, 0), NONE, "a page was written into");
        assert_eq!(of(code, 0, 4), NONE, "such a page is in swap");
        assert_eq!(of("1000-3000 r-xp 00000000 00:00 0 [vdso]", 0, 0), NONE, "of no file");
        assert_eq!(of("1000-3000 r--s 00000000 fe:00 7 /x", 0, 0), NONE, "shared");
        assert_eq!(
            unchanged("1000-3000 r-xp 0 fe:00 7 /bin/x\nRss: 8 kB\nAnonymous: 0 kB\n"),
            NONE,
            "a figure is missing"
        );
        let three = [
            mapping(code, 4, 0),
            mapping("3000-4000 r-xp 0 fe:00 7 /a", 0, 0),
            mapping("5000-6000 rw-p 0 0:0 0", 0, 0),
        ];
        assert_eq!(unchanged(&three.concat()), [(0x3000, 0x4000)]);
    }

    fn holds((start, end): (usize, usize), at: usize) -> bool {
        (start..end).contains(&at)
    }

    /// KiB in memory of the mapping that holds the address `at`.
    fn resident_kib(at: usize) -> usize {
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines =
            text.lines().skip_while(|line| !begins(line).is_some_and(|(addresses, _)| holds(addresses, at)));
        let figure = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        figure.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn code_of_a_library_goes_and_comes_back_as_it_was() {
        let at = libc::getpid as *const () as usize;
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = unchanged(&text).into_iter().find(|addresses| holds(*addresses, at));
        let (start, end) = mapping.expect("nobody writes into the code of the C library");
        let bytes = || {
            // SAFETY: the mapping stays, and is readable as all code is.
            unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(start), end - start) }.to_vec()
        };
        let before = bytes();
        let resident = resident_kib(at);
        release_program();
        assert!(resident_kib(at) < resident, "pages went");
        assert!(bytes() == before, "a page came back different");
    }
}
