//! What threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic: each change under our locks leaves the state whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns so many random bytes in hexadecimal.
pub fn random_hex(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).expect("the system has random numbers");
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}
