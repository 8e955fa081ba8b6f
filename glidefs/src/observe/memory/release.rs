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
/// where the kernel notes that the page was in use. A segment that somebody has written into is left alone: a debugger or a probe, or
/// the loader in a library with relocations there.
pub fn release_program() {
    let mut segments: Vec<(usize, usize)> = Vec::new();
    // SAFETY: the callback gets the address of `segments`, which outlives the call, and unwinds never.
    unsafe { libc::dl_iterate_phdr(Some(of_object), (&raw mut segments).cast()) };
    // The kernel counts pages written into.
    let Ok(mappings) = fs::read_to_string("/proc/self/smaps") else { return };
    for (start, len) in segments.into_iter().filter(|(start, len)| is_as_in_the_file(&mappings, *start, *len))
    {
        // SAFETY: the pages are of one private mapping of a file which has no page that differs from the file, and no code of ours writes
        // into such segments. Reading one gives the same bytes again. A refusal, as for locked memory, changes nothing.
        unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start), len, libc::MADV_DONTNEED) };
    }
}

/// The callback for the program and for each library. Returns 0, which asks for the next. `data` is the address of the list that gets the
/// segments.
unsafe extern "C" fn of_object(
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
    let segments = unsafe { &mut *data.cast::<Vec<(usize, usize)>>() };
    segments.extend(headers.iter().filter_map(|header| pages(object.dlpi_addr, header, page_bytes())));
    0
}

/// Whether the `len` bytes at the address `at` lie in one private mapping of a file, and all pages of the mapping are those of the file, by
/// the text of `/proc/self/smaps`. The kernel's own object in a process is of no file.
fn is_as_in_the_file(mappings: &str, at: usize, len: usize) -> bool {
    let holds_all = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16));
        let (permissions, inode) = (fields.next()?, fields.nth(2)?);
        let holds = start.ok()? <= at && at.checked_add(len)? <= end.ok()?;
        Some(holds && permissions.ends_with('p') && inode != "0")
    };
    let mut lines = mappings.lines().skip_while(|line| holds_all(line) != Some(true));
    lines
        .find_map(|line| line.strip_prefix("Anonymous:"))
        .is_some_and(|bytes| bytes.split_whitespace().next() == Some("0"))
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
        let mappings = "1000-3000 r-xp 00000000 fe:00 7 /bin/x\nRss: 8 kB\nAnonymous: 0 kB\nVmFlags: rd ex\n\
            3000-5000 r-xp 00000000 fe:00 7 /bin/x\nRss: 8 kB\nAnonymous: 4 kB\nVmFlags: rd ex\n\
            7000-8000 r-xp 00000000 00:00 0 [vdso]\nRss: 4 kB\nAnonymous: 0 kB\nVmFlags: rd ex\n\
            8000-9000 r--s 00000000 fe:00 8 /x\nRss: 4 kB\nAnonymous: 0 kB\nVmFlags: rd sh\n";
        let is = |at, len| is_as_in_the_file(mappings, at, len);
        assert!(is(0x1000, 0x2000) && is(0x2000, 0x1000));
        assert!(!is(0x3000, 0x1000) && !is(0x4000, 0x1000), "a page was written into");
        assert!(!is(0x2000, 0x2000), "beyond the mapping");
        assert!(!is(0x5000, 0x1000) && !is(0, 0x1000), "no such mapping");
        assert!(!is(0x7000, 0x1000), "of no file");
        assert!(!is(0x8000, 0x1000), "shared");
        assert!(
            !is_as_in_the_file("1000-3000 r-xp 0 fe:00 7 /bin/x\nRss: 8 kB\n", 0x1000, 0x1000),
            "no figure"
        );
    }

    /// KiB of the mapping with the address `at` that are in memory.
    fn resident_kib(at: usize) -> usize {
        let mappings = fs::read_to_string("/proc/self/smaps").unwrap();
        let starts_at = format!("{at:x}-");
        let mut lines = mappings.lines().skip_while(|line| !line.starts_with(&starts_at));
        lines
            .find_map(|line| line.strip_prefix("Rss:"))
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    }

    #[test]
    fn what_is_released_of_the_program_and_its_libraries_goes_and_comes_back_as_it_was() {
        let mut segments: Vec<(usize, usize)> = Vec::new();
        // SAFETY: as in `release_program`.
        unsafe { libc::dl_iterate_phdr(Some(of_object), (&raw mut segments).cast()) };
        let mappings = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_libc = libc::getpid as *const () as usize;
        let with_libc = segments.iter().find(|(start, len)| (*start..start + len).contains(&of_libc));
        let (start, len) = *with_libc.expect("the C library is among the objects");
        assert!(is_as_in_the_file(&mappings, start, len), "{mappings}");
        // SAFETY: the segment is mapped, and readable as all code is.
        let hash =
            || blake3::hash(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(start), len) });
        let before = hash();
        assert!(resident_kib(start) >= len / 1024, "all pages were read");
        release_program();
        assert!(resident_kib(start) < len / 1024, "pages went");
        assert_eq!(hash(), before);
    }
}
