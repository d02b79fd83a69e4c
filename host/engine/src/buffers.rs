//! Gives llama.cpp's large buffers in the host's memory as the system has them: zero, and there only where something was written.
//!
//! llama.cpp writes zeros to all of a new KV cache, so that the system has to find each of its pages at the start: a second a GiB,
//! whether anybody will use them or not. New pages of the system are zero anyway, once somebody asks for them.
//!
//! Large pages would be found sooner. Computing is slower with them (`docs/benchmarks.md`, "Start"), so they are refused, also
//! where the system would give them unasked.
use std::ffi::c_void;
use std::ptr::{null_mut, write_bytes};

use llama_cpp_sys_2 as sys;
#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Smaller buffers are llama.cpp's own.
const LARGE: usize = 16 << 20;

type Unused = Option<unsafe extern "C" fn()>;
type Alloc = unsafe extern "C" fn(*mut BufferType, usize) -> *mut Buffer;
type Free = unsafe extern "C" fn(*mut Buffer);
type Clear = unsafe extern "C" fn(*mut Buffer, u8);

/// As `ggml-backend-impl.h` of the pinned version declares it, as far as it is used. A test compares.
#[repr(C)]
struct BufferType {
    name: Unused,
    alloc: Option<Alloc>,
}

/// As `BufferType`.
#[repr(C)]
struct Buffer {
    free: Option<Free>,
    between: [Unused; 8],
    clear: Option<Clear>,
    reset: Unused,
    kind: *mut BufferType,
    memory: *mut c_void,
    size: usize,
}

/// What allocates the small ones.
static mut SMALL: Option<Alloc> = None;

/// From now on llama.cpp's large buffers are made here.
///
/// # Safety
/// Nobody else uses llama.cpp yet.
pub(crate) unsafe fn replace() {
    // SAFETY: llama.cpp's type lives as long as the process, is not constant, and begins as is declared here. Nobody else uses it, or
    // the static, by the caller's word.
    unsafe {
        let kind = sys::ggml_backend_cpu_buffer_type().cast::<BufferType>();
        SMALL = (*kind).alloc.replace(alloc);
    }
}

unsafe extern "C" fn alloc(kind: *mut BufferType, size: usize) -> *mut Buffer {
    if size < LARGE {
        // SAFETY: it was written before this function could be called, and is called as it was meant to be.
        return unsafe { SMALL.map_or(null_mut(), |alloc| alloc(kind, size)) };
    }
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: new memory, where the system likes.
    let Ok(memory) = (unsafe { mmap_anonymous(null_mut(), size, access, flags) }) else { return null_mut() };
    #[cfg(target_os = "linux")]
    // SAFETY: the memory is ours, and stays as it is. A system without large pages refuses.
    let _ = unsafe { madvise(memory, size, Advice::LinuxNoHugepage) };
    // SAFETY: the memory has that size, and begins at a page. llama.cpp ends the process where it has none for the buffer itself.
    // The buffer is as declared here, and nobody else has it yet.
    unsafe {
        let buffer = sys::ggml_backend_cpu_buffer_from_ptr(memory, size).cast::<Buffer>();
        (*buffer).kind = kind;
        (*buffer).free = Some(free);
        (*buffer).clear = Some(clear);
        buffer
    }
}

unsafe extern "C" fn free(buffer: *mut Buffer) {
    // SAFETY: it is one of those that `alloc` made, and nobody uses it any more.
    let _ = unsafe { munmap((*buffer).memory, (*buffer).size) };
}

// One address: a test compares it.
#[inline(never)]
unsafe extern "C" fn clear(buffer: *mut Buffer, value: u8) {
    // SAFETY: it is one of those that `alloc` made, and nobody else uses it meanwhile.
    let (memory, size) = unsafe { ((*buffer).memory, (*buffer).size) };
    // Elsewhere the advice does not promise zeros. Memory that is locked keeps what it has.
    #[cfg(target_os = "linux")]
    // SAFETY: the memory is ours: the system takes its pages back, and gives zeros from now on.
    if value == 0 && unsafe { madvise(memory, size, Advice::LinuxDontNeed) }.is_ok() {
        return;
    }
    // SAFETY: as above.
    unsafe { write_bytes(memory.cast::<u8>(), value, size) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::backend;

    /// A buffer of llama.cpp's, and how much memory of it the system has given.
    struct Made(sys::ggml_backend_buffer_t);

    impl Made {
        fn of(size: usize) -> Self {
            backend().unwrap();
            // SAFETY: llama.cpp is started.
            Self(unsafe { sys::ggml_backend_buft_alloc_buffer(sys::ggml_backend_cpu_buffer_type(), size) })
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: the buffer has so many bytes there.
            unsafe {
                let base = sys::ggml_backend_buffer_get_base(self.0).cast::<u8>();
                std::slice::from_raw_parts_mut(base, sys::ggml_backend_buffer_get_size(self.0))
            }
        }

        fn clear(&mut self, value: u8) {
            // SAFETY: nobody else uses the buffer.
            unsafe { sys::ggml_backend_buffer_clear(self.0, value) };
        }

        fn given(&mut self) -> usize {
            let page = 4096;
            let bytes = self.bytes();
            let pages = bytes.len().div_ceil(page);
            let mut is_given = vec![0_u8; pages];
            // SAFETY: the list has an element for each page.
            let done = unsafe { libc_mincore(bytes.as_mut_ptr().cast(), bytes.len(), is_given.as_mut_ptr()) };
            assert_eq!(done, 0);
            is_given.iter().filter(|&given| given & 1 == 1).count() * page
        }
    }

    unsafe extern "C" {
        #[link_name = "mincore"]
        fn libc_mincore(at: *mut c_void, size: usize, is_given: *mut u8) -> i32;
    }

    impl Drop for Made {
        fn drop(&mut self) {
            // SAFETY: nobody uses it after this.
            unsafe { sys::ggml_backend_buffer_free(self.0) };
        }
    }

    #[test]
    fn llama_cpp_has_the_layout_that_is_declared_here() {
        for size in [LARGE - 1, LARGE, LARGE + 1] {
            let mut made = Made::of(size);
            let raw = made.0.cast::<Buffer>();
            // SAFETY: the buffer is whole.
            let (kind, memory, shown) = unsafe { ((*raw).kind, (*raw).memory, (*raw).size) };
            // SAFETY: the buffer is whole.
            let (own, is_host) =
                unsafe { (sys::ggml_backend_buffer_get_type(made.0), sys::ggml_backend_buffer_is_host(made.0)) };
            assert!(is_host);
            assert_eq!(kind.cast(), own);
            // SAFETY: the function takes nothing.
            assert_eq!(own, unsafe { sys::ggml_backend_cpu_buffer_type() });
            assert_eq!((memory.cast::<u8>(), shown), (made.bytes().as_mut_ptr(), size));
            // SAFETY: the buffer is whole.
            let is_ours = unsafe { (*raw).clear.is_some_and(|own| own as usize == clear as *const () as usize) };
            assert_eq!(is_ours, size >= LARGE, "{size}");
        }
    }

    #[test]
    fn a_large_buffer_takes_memory_only_where_it_was_written() {
        let mut made = Made::of(8 * LARGE);
        made.clear(0);
        assert_eq!(made.given(), 0);
        made.bytes()[3 * LARGE] = 1;
        let given = made.given();
        assert!((1..=LARGE).contains(&given), "{given}");
        assert_eq!(made.bytes().iter().map(|&byte| u64::from(byte)).sum::<u64>(), 1);
        made.clear(7);
        assert!(made.bytes().iter().all(|&byte| byte == 7));
        made.clear(0);
        assert!(made.bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_small_buffer_is_cleared_too() {
        let mut made = Made::of(LARGE - 1);
        made.clear(7);
        made.clear(0);
        assert!(made.bytes().iter().all(|&byte| byte == 0));
    }
}
