//! Memory that goes back to the kernel: free memory of the heap, and pages of the program.
//!
//! Owns which pages of the program can be released: those of segments that nobody can write to, so that each page comes back from the
//! file as it was. Does not own when (`daemon/releasing`).

use std::ffi::c_void;
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

/// Releases the pages of the program: most were in use for the start alone. A page comes back at the next use, together with its
/// neighbours: from the page cache, where the page stays until the kernel needs the memory. What a debugger or a probe has written into
/// the code is lost.
pub fn release_program() {
    // SAFETY: the callback takes what the call gives, keeps nothing, and unwinds never; it uses no data.
    unsafe { libc::dl_iterate_phdr(Some(of_program), ptr::null_mut()) };
}

/// The callback for the first object, which is the program. Returns 1: libraries are left alone, as a library may have been changed
/// where it lies when it was loaded.
unsafe extern "C" fn of_program(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut c_void,
) -> libc::c_int {
    // SAFETY: the loader gives the callback a valid description of the object.
    let object = unsafe { &*object };
    if object.dlpi_phdr.is_null() {
        return 1;
    }
    // SAFETY: so many headers of a loaded object are there, and nobody writes to them.
    let headers = unsafe { slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    for header in headers {
        let Some((start, len)) = pages(object.dlpi_addr, header, page_bytes()) else { continue };
        // SAFETY: the pages are a private mapping of the program's file that never was writable, so none differs from the file: the
        // program is built without relocations in such segments. Reading one gives the same bytes again. A refusal, as for locked
        // memory, changes nothing.
        unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start), len, libc::MADV_DONTNEED) };
    }
    1
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

fn page_bytes() -> usize {
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
}
