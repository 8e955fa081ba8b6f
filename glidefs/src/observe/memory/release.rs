//! Memory that goes back to the kernel: free memory of the heap, and pages of the program.
//!
//! Owns which pages of the program can be released: those of segments that nobody can write to, so that each page comes back from the
//! file as it was. Does not own when (`daemon/releasing`).

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

/// Releases the pages of the program: most were in use for the start, or for a batch of requests, alone. A page comes back at the next
/// use, together with its neighbours: from the page cache, where the page stays until the kernel needs the memory, and where the kernel
/// notes that the page was in use. A segment that a debugger or a probe has written into is left alone.
pub fn release_program() {
    let mut segments: Vec<(usize, usize)> = Vec::new();
    // SAFETY: the callback gets the address of `segments`, which outlives the call, and unwinds never.
    unsafe { libc::dl_iterate_phdr(Some(of_program), (&raw mut segments).cast()) };
    // The kernel counts pages written into.
    let Ok(mappings) = fs::read_to_string("/proc/self/smaps") else { return };
    for (start, len) in segments.into_iter().filter(|(start, _)| is_as_in_the_file(&mappings, *start)) {
        // SAFETY: the pages are a private mapping of the program's file that never was writable, so none differs from the file: the
        // program is built without relocations in such segments. Reading one gives the same bytes again. A refusal, as for locked
        // memory, changes nothing.
        unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start), len, libc::MADV_DONTNEED) };
    }
}

/// The callback for the first object, which is the program. Returns 1: libraries are left alone, as a library may have been changed
/// where it lies when it was loaded. `data` is the address of the list that gets the segments.
unsafe extern "C" fn of_program(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    data: *mut c_void,
) -> libc::c_int {
    // SAFETY: the loader gives the callback a valid description of the object.
    let object = unsafe { &*object };
    if object.dlpi_phdr.is_null() {
        return 1;
    }
    // SAFETY: so many headers of a loaded object are there, and nobody writes to them.
    let headers = unsafe { slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    // SAFETY: the caller of the loader gave the address of such a list, and does not use it meanwhile.
    let segments = unsafe { &mut *data.cast::<Vec<(usize, usize)>>() };
    segments.extend(headers.iter().filter_map(|header| pages(object.dlpi_addr, header, page_bytes())));
    1
}

/// Whether all pages of the mapping with the address `at` are those of a file, by the text of `/proc/self/smaps`.
fn is_as_in_the_file(mappings: &str, at: usize) -> bool {
    let holds_address = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16));
        Some((start.ok()?..end.ok()?).contains(&at))
    };
    let mut lines = mappings.lines().skip_while(|line| holds_address(line) != Some(true));
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
            3000-5000 r-xp 00000000 fe:00 7 /bin/x\nRss: 8 kB\nAnonymous: 4 kB\nVmFlags: rd ex\n";
        let is = |at| is_as_in_the_file(mappings, at);
        assert!(is(0x1000) && is(0x2fff));
        assert!(!is(0x3000) && !is(0x4fff), "a page was written into");
        assert!(!is(0x5000) && !is(0xfff), "no such mapping");
        assert!(!is_as_in_the_file("1000-3000 r-xp 0 fe:00 7 /bin/x\nRss: 8 kB\n", 0x1000), "no figure");
    }
}
