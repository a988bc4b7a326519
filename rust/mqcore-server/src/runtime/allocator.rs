//! The memory allocator of every program with a server.
//!
//! One thread allocates a message and another frees it, many at a time. glibc keeps seven blocks of a size per thread and
//! takes a lock for each further one, which is a seventh of the instructions of a delivery. jemalloc keeps hundreds, and
//! exchanges them in batches. Python and C libraries in the same process keep the allocator of the system.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;
