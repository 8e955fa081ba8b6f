//! The catalog of exports, beside the store of the configuration.
//!
//! Owns the judgement. Does not own the checks of the catalog (`router`).

use uuid::Uuid;

use super::finding::{Finding, Verdict};
use crate::router::CatalogGlance;

const CHECK: &str = "catalog";

/// The catalog, and the store.
#[derive(Clone, Debug)]
pub(super) struct CatalogFacts {
    pub catalog: CatalogState,
    /// Whether some process serves devices of the cache, so the catalog is in use, although no lock is seen.
    pub is_served: bool,
    /// Whether `[store] url` is set.
    pub has_store: bool,
    /// The identity of the store that was found at the URL.
    pub found: Option<Uuid>,
}

/// The catalog in the directory of the cache.
#[derive(Clone, Debug)]
pub(super) enum CatalogState {
    Absent,
    /// A daemon has the catalog, and has checked the catalog.
    InUse,
    /// This command may not read the file.
    Forbidden,
    /// A start would refuse the catalog: the sentence of the refusal.
    Refused(String),
    Read(CatalogGlance),
}

/// The finding about the catalog.
pub(super) fn check(facts: &CatalogFacts) -> Finding {
    const WHY: &str = "the daemon does not start";
    let glance = match &facts.catalog {
        CatalogState::Absent => return Finding::ok(CHECK, "none yet"),
        CatalogState::InUse => return Finding::ok(CHECK, "in use by the daemon"),
        CatalogState::Forbidden => {
            return Finding::note(
                CHECK,
                "not known",
                "this command may not read the file",
                "sudo glidefs doctor",
            );
        }
        CatalogState::Refused(error) => {
            let mend = "docs/operations.md, \"The daemon does not start\"";
            let most = if facts.is_served { Verdict::Warning } else { Verdict::Failure };
            return Finding::failure(CHECK, error, WHY, mend).at_most(most);
        }
        CatalogState::Read(glance) => glance,
    };
    let found = format!("{} exports, {} of these in a store", glance.exports, glance.stored_exports);
    if glance.stored_exports > 0 && !facts.has_store {
        let mend = "set [store] url to the place of the store with the data of the exports";
        return Finding::failure(CHECK, format!("{found}; [store] url is not set"), WHY, mend);
    }
    match (glance.store_id, facts.found) {
        (Some(known), Some(other)) if known != other => Finding::failure(
            CHECK,
            format!("{found}: in store {known}, and [store] url has store {other}"),
            "nothing is written back or fetched, and exports wait at the start until their store confirms them",
            "set [store] url to the place of the first one, or give the exports up with another [cache] dir",
        ),
        _ => Finding::ok(CHECK, found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Failure, Note, Ok, Warning};
    use super::*;

    fn facts() -> CatalogFacts {
        let store = Uuid::from_u128(1);
        let glance = CatalogGlance { exports: 3, stored_exports: 2, store_id: Some(store) };
        CatalogFacts {
            catalog: CatalogState::Read(glance),
            is_served: false,
            has_store: true,
            found: Some(store),
        }
    }

    #[test]
    fn a_catalog_with_its_store_is_well_and_so_is_one_that_is_absent_in_use_or_cannot_be_compared() {
        assert_eq!(check(&facts()).verdict, Ok);
        assert_eq!(check(&CatalogFacts { found: None, ..facts() }).verdict, Ok, "the store is away");
        for catalog in [CatalogState::Absent, CatalogState::InUse] {
            assert_eq!(check(&CatalogFacts { catalog, ..facts() }).verdict, Ok);
        }
        assert_eq!(check(&CatalogFacts { catalog: CatalogState::Forbidden, ..facts() }).verdict, Note);
    }

    #[test]
    fn a_catalog_that_a_start_would_refuse_is_a_failure() {
        let catalog = CatalogState::Refused("the entry of export id 3 is damaged".into());
        let refused = CatalogFacts { catalog, ..facts() };
        assert_eq!(check(&refused).verdict, Failure);
        // The copy may be torn by a daemon whose locks are not seen here.
        assert_eq!(check(&CatalogFacts { is_served: true, ..refused }).verdict, Warning);
    }

    #[test]
    fn exports_of_another_store_or_of_none_are_a_failure() {
        let without = CatalogFacts { has_store: false, found: None, ..facts() };
        assert_eq!(check(&without).verdict, Failure);
        let other = CatalogFacts { found: Some(Uuid::from_u128(2)), ..facts() };
        assert_eq!(check(&other).verdict, Failure);
        let local = CatalogGlance { exports: 3, stored_exports: 0, store_id: None };
        let local = CatalogFacts { catalog: CatalogState::Read(local), ..without };
        assert_eq!(check(&local).verdict, Ok);
    }
}
