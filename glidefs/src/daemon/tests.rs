//! The daemon without devices and sockets: router, cache and store as the daemon puts them together, on a fake kernel
//! and a store that fails.

mod at_rest;
mod blank;
mod damaged;
mod deaths;
mod elsewhere;
mod handed_over;
mod holders;
mod host;
mod loss;
mod model;
mod operations;
mod prefixes;
mod properties;
mod sim;
mod starts;
mod twin;
mod unnoted;
