//! Scheduler, block pool, prefix cache, the step loop and its handle
