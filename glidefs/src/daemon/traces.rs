//! The workers and the store as sources of traces.
//!
//! Does not own traces (`worker/traces`, `store`), nor their readers (`api/trace`).

use std::sync::Arc;

use crate::observe::trace::{Kinds, Session, Source};
use crate::router::Router;
use crate::store::Store;
use crate::worker::Worker;

/// The parts of the daemon that make traces.
pub(super) struct TraceSource {
    pub router: Arc<Router>,
    pub workers: Vec<Worker>,
    pub store: Option<Store>,
}

impl TraceSource {
    /// The workers that `session` is for.
    fn workers_of(&self, session: &Session) -> &[Worker] {
        if session.ask().kinds == Kinds::Store { &[] } else { &self.workers }
    }
}

impl Source for TraceSource {
    fn workers(&self) -> usize {
        self.workers.len()
    }

    fn begin(&self, session: &Arc<Session>) {
        self.workers_of(session).iter().for_each(|worker| worker.trace(session));
        if let Some(store) = &self.store {
            store.stats().traces.begin(session);
        }
    }

    fn end(&self, session: &Arc<Session>) {
        self.workers_of(session).iter().for_each(|worker| worker.untrace(session));
        if let Some(store) = &self.store {
            store.stats().traces.end(session);
        }
    }

    fn requests(&self) -> u64 {
        self.workers.iter().map(|worker| worker.stats().requests.get()).fold(0, u64::wrapping_add)
    }

    fn volumes(&self) -> Vec<(String, String)> {
        let mut volumes = Vec::new();
        self.router.visit(|glance| {
            if let Some(volume) = glance.export.and_then(|export| export.volume().stored_as()) {
                volumes.push((volume.to_string(), glance.name.to_owned()));
            }
        });
        volumes
    }
}
