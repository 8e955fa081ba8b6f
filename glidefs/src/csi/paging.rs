//! Listings in pages.
//!
//! Owns the tokens. A token names the last entry of the page before, so a page is right also when entries came and went meanwhile.

use super::error::CsiError;

/// The beginning of each token.
const MARK: &str = "after:";

/// A page of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page<T> {
    pub entries: Vec<T>,
    /// The token of the next page; empty at the end.
    pub next_token: String,
}

/// The page of `entries` which begins after `token` and has `max` entries at most, 0 for any number. Each entry has an id.
pub(super) fn page<T>(mut entries: Vec<(String, T)>, max: i32, token: &str) -> Result<Page<T>, CsiError> {
    let max =
        usize::try_from(max).map_err(|_| CsiError::invalid("max_entries", format!("{max} is negative")))?;
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    if !token.is_empty() {
        let after = token.strip_prefix(MARK).filter(|after| !after.is_empty());
        let after = after.ok_or_else(|| {
            let token: String = token.chars().take(80).collect();
            let reason = format!("{token:?} is no token of a listing: begin without a token");
            CsiError::new(tonic::Code::Aborted, reason)
        })?;
        entries.retain(|(id, _)| id.as_str() > after);
    }
    let is_last = max == 0 || entries.len() <= max;
    if !is_last {
        entries.truncate(max);
    }
    let last = entries.last().filter(|_| !is_last);
    let next_token = last.map_or(String::new(), |(id, _)| format!("{MARK}{id}"));
    Ok(Page { entries: entries.into_iter().map(|(_, entry)| entry).collect(), next_token })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listing(ids: impl IntoIterator<Item = u8>) -> Vec<(String, u8)> {
        ids.into_iter().map(|id| (format!("{id:03}"), id)).collect()
    }

    #[test]
    fn without_a_bound_everything_is_on_one_page() {
        let all = page(listing([2, 1, 3]), 0, "").unwrap();
        assert_eq!(all, Page { entries: vec![1, 2, 3], next_token: String::new() });
    }

    #[test]
    fn a_page_goes_on_where_the_one_before_ended_though_its_last_entry_is_gone() {
        let first = page(listing([1, 2, 3, 4]), 2, "").unwrap();
        assert_eq!(first.entries, [1, 2]);
        let second = page(listing([3, 4, 5]), 0, &first.next_token).unwrap();
        assert_eq!(second, Page { entries: vec![3, 4, 5], next_token: String::new() });
    }

    #[test]
    fn tokens_of_others_are_refused() {
        for token in ["invalid-token", "after:", "7"] {
            assert!(
                matches!(
                    page(listing([1]), 0, token),
                    Err(CsiError::Refused { code: tonic::Code::Aborted, .. })
                ),
                "{token}"
            );
        }
        assert!(matches!(
            page(listing([1]), -1, ""),
            Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
        ));
    }

    proptest! {
        #[test]
        fn the_pages_have_each_entry_once(ids in proptest::collection::btree_set(0..200_u8, 0..40), max in 1..9_i32) {
            let (mut seen, mut token) = (Vec::new(), String::new());
            loop {
                let next = page(listing(ids.iter().copied()), max, &token).unwrap();
                prop_assert!(next.entries.len() <= usize::try_from(max).unwrap());
                seen.extend(next.entries);
                token = next.next_token;
                if token.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(seen, ids.into_iter().collect::<Vec<_>>());
        }
    }
}
