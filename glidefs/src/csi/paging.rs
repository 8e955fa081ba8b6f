//! Listings in pages.
//!
//! Owns the tokens. A token names the last entry of the page before, so a page is right also when entries came and went meanwhile.

use super::error::CsiError;

/// The beginning of each token.
const MARK: &str = "after:";

/// The page of `entries` which begins after `token` and has `max` entries at most, 0 for any number, and the token of the next page,
/// which is empty at the end. Each entry has an id.
pub(super) fn page<T>(
    mut entries: Vec<T>,
    id: impl Fn(&T) -> &str,
    max: i32,
    token: &str,
) -> Result<(Vec<T>, String), CsiError> {
    let max =
        usize::try_from(max).map_err(|_| CsiError::invalid("max_entries", format!("{max} is negative")))?;
    entries.sort_by(|a, b| id(a).cmp(id(b)));
    if !token.is_empty() {
        let after = token.strip_prefix(MARK).filter(|after| !after.is_empty());
        let after = after.ok_or_else(|| {
            let token: String = token.chars().take(80).collect();
            let reason = format!("{token:?} is no token of a listing: begin without a token");
            CsiError::new(tonic::Code::Aborted, reason)
        })?;
        entries.retain(|entry| id(entry) > after);
    }
    let is_last = max == 0 || entries.len() <= max;
    if !is_last {
        entries.truncate(max);
    }
    let last = entries.last().filter(|_| !is_last);
    let next_token = last.map_or(String::new(), |last| format!("{MARK}{}", id(last)));
    Ok((entries, next_token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page_of(
        ids: impl IntoIterator<Item = u8>,
        max: i32,
        token: &str,
    ) -> Result<(Vec<String>, String), CsiError> {
        page(ids.into_iter().map(|id| format!("{id:03}")).collect(), |id: &String| id, max, token)
    }

    #[test]
    fn without_a_bound_everything_is_on_one_page() {
        let (all, next) = page_of([2, 1, 3], 0, "").unwrap();
        assert_eq!((all.join(" ").as_str(), next.as_str()), ("001 002 003", ""));
    }

    #[test]
    fn a_page_goes_on_where_the_one_before_ended_though_its_last_entry_is_gone() {
        let (first, next) = page_of([1, 2, 3, 4], 2, "").unwrap();
        assert_eq!(first, ["001", "002"]);
        let (second, next) = page_of([3, 4, 5], 0, &next).unwrap();
        assert_eq!((second.join(" ").as_str(), next.as_str()), ("003 004 005", ""));
    }

    #[test]
    fn tokens_of_others_are_refused() {
        for token in ["invalid-token", "after:", "7"] {
            assert!(
                matches!(page_of([1], 0, token), Err(CsiError::Refused { code: tonic::Code::Aborted, .. })),
                "{token}"
            );
        }
        assert!(matches!(
            page_of([1], -1, ""),
            Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
        ));
    }

    proptest! {
        #[test]
        fn the_pages_have_each_entry_once(ids in proptest::collection::btree_set(0..200_u8, 0..40), max in 1..9_i32) {
            let (mut seen, mut token) = (Vec::new(), String::new());
            loop {
                let (entries, next) = page_of(ids.iter().copied(), max, &token).unwrap();
                prop_assert!(entries.len() <= usize::try_from(max).unwrap());
                seen.extend(entries);
                token = next;
                if token.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(seen, ids.into_iter().map(|id| format!("{id:03}")).collect::<Vec<_>>());
        }
    }
}
