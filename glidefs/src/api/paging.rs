//! Pages of lists: which entries a page has, and the address of the next page (RFC 8288).
//!
//! Does not own the lists. Invariant: a page begins behind a position in the order of the list, and not behind a number of entries, so an
//! entry that exists throughout is on exactly one page, whatever comes and goes meanwhile.

use axum::extract::FromRequestParts;
use axum::http::header::LINK;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use serde::Serialize;

use super::body::InQuery;
use super::error::ApiError;
use super::wire::PageQuery;
use super::wire::ProblemCode as P;

/// Most entries of a page for which a client may ask.
const LIMIT_MAX: usize = 1000;

/// A page of a list, as a client asks for it.
#[derive(Debug)]
pub(super) struct Page {
    /// Most entries; without a limit more than any list has.
    pub limit: usize,
    /// The position behind which the page begins.
    pub after: Option<String>,
}

/// The headers of a page: one with the address of the next page, if there is one.
pub(super) type Headers = Option<[(HeaderName, HeaderValue); 1]>;

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let InQuery(PageQuery { limit, after }) = InQuery::from_request_parts(parts, state).await?;
        let refusal = || ApiError::new(P::BadParameter, format!("limit is a number from 1 to {LIMIT_MAX}"));
        let bound = |limit| usize::try_from(limit).ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
        let limit = limit.map_or(Ok(usize::MAX), |limit| bound(limit).ok_or_else(refusal))?;
        Ok(Self { limit, after })
    }
}

impl Page {
    /// The header of a page of the list at `path`: the page ends at the position `last`, and more entries come behind.
    pub fn next(&self, path: &str, last: &str) -> Result<Headers, ApiError> {
        let limit = self.limit;
        // Names and ids need no escaping in a query.
        let link = HeaderValue::try_from(format!("<{path}?limit={limit}&after={last}>; rel=\"next\""));
        let link =
            link.map_err(|_| ApiError::new(P::Internal, "the address of the next page is no header"))?;
        Ok(Some([(LINK, link)]))
    }

    /// The page of `entries`, a whole list in any order, and the headers. The order is that of `name` and `id`; without ids the names differ.
    pub fn of<T>(
        &self,
        mut entries: Vec<T>,
        path: &str,
        position: impl for<'a> Fn(&'a T) -> (&'a str, &'a str),
    ) -> Result<(Headers, Vec<T>), ApiError> {
        entries.sort_by(|a, b| position(a).cmp(&position(b)));
        if let Some(after) = &self.after {
            let after = after.split_once('/').unwrap_or((after.as_str(), ""));
            entries.retain(|entry| position(entry) > after);
        }
        if entries.len() <= self.limit {
            return Ok((None, entries));
        }
        entries.truncate(self.limit);
        let headers = match entries.last().map(&position) {
            Some((name, "")) => self.next(path, name)?,
            Some((name, id)) => self.next(path, &format!("{name}/{id}"))?,
            None => None,
        };
        Ok((headers, entries))
    }
}

/// A JSON array of `items`, none of which is kept: a list has thousands.
pub(super) fn json_list(items: impl Iterator<Item = impl Serialize>) -> Result<Vec<u8>, ApiError> {
    let mut text = vec![b'['];
    for item in items {
        if text.len() > 1 {
            text.push(b',');
        }
        serde_json::to_writer(&mut text, &item)
            .map_err(|_| ApiError::new(P::Internal, "an entry has no JSON form"))?;
    }
    text.push(b']');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The position in the header of a page.
    fn cursor(headers: &Headers) -> Option<String> {
        let [(_, link)] = headers.as_ref()?;
        let (_, rest) = link.to_str().unwrap().split_once("&after=").unwrap();
        Some(rest.split_once('>').unwrap().0.to_owned())
    }

    proptest! {
        /// Names with each other as beginnings, and several entries of a name, of which some come and go between pages.
        #[test]
        fn entries_that_stay_are_on_exactly_one_page(
            stays in proptest::collection::btree_set(("[ab][a.-]{0,2}", 0..3_u8), 0..20),
            others in proptest::collection::vec(proptest::collection::btree_set(("[ab][a.-]{0,2}", 3..6_u8), 0..9), 30),
            limit in 1..5_usize,
        ) {
            let (mut seen, mut after) = (Vec::new(), None);
            for others in &others {
                let entries: Vec<(String, String)> =
                    stays.iter().chain(others).rev().map(|(name, id)| (name.clone(), id.to_string())).collect();
                let page = Page { limit, after: after.take() };
                let (headers, entries) = page.of(entries, "/x", |(name, id)| (name, id)).unwrap();
                prop_assert!(entries.len() <= limit);
                seen.extend(entries.into_iter().filter(|(_, id)| id.as_str() < "3"));
                after = cursor(&headers);
                if after.is_none() {
                    break;
                }
            }
            let expected: Vec<_> = stays.into_iter().map(|(name, id)| (name, id.to_string())).collect();
            prop_assert_eq!(after, None);
            prop_assert_eq!(seen, expected);
        }
    }
}
