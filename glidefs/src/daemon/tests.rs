//! The daemon without devices and sockets: router, cache and store as they are put together, on a kernel that is not there
//! and a store that fails.

mod damaged;
mod elsewhere;
mod holders;
mod host;
mod lost;
mod model;
mod operations;
mod prefixes;
mod sim;
mod starts;
mod twin;
