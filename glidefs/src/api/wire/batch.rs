//! A batch: one operation on many exports, and the result for each.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answers::Export;
use super::problem::BatchError;
use super::requests::CreateRequest;

/// Most exports of a batch.
pub const BATCH_EXPORTS_MAX: usize = 20_000;
/// Largest body of a batch, bytes.
pub const BATCH_BYTES_MAX: usize = 8 << 20;

/// Asks for one operation on many exports: at most 20,000, in 8 MiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(example = json!({"create": [{"name": "vm-1", "size": "10GiB"}, {"name": "vm-2", "size": "10GiB"}]}))]
pub enum BatchRequest {
    /// Create these exports.
    Create(#[serde(deserialize_with = "counted")] Vec<CreateRequest>),
    /// Give the exports of these names a block device.
    Attach(#[serde(deserialize_with = "counted")] Vec<String>),
    /// Remove the block devices of the exports of these names.
    Detach(#[serde(deserialize_with = "counted")] Vec<String>),
    /// Delete the exports of these names.
    Delete(#[serde(deserialize_with = "counted")] Vec<String>),
}

impl BatchRequest {
    /// Number of exports; of a list that is too long, one more than the most.
    pub fn exports(&self) -> usize {
        match self {
            Self::Create(requests) => requests.len(),
            Self::Attach(names) | Self::Detach(names) | Self::Delete(names) => names.len(),
        }
    }

    /// A parameter that `query` sets, and that this operation does not have.
    pub fn foreign_parameter(&self, query: BatchQuery) -> Option<&'static str> {
        let has_force = matches!(self, Self::Detach(_) | Self::Delete(_));
        let has_unconfirmed = matches!(self, Self::Attach(_));
        match query {
            BatchQuery { force: true, .. } if !has_force => Some("force"),
            BatchQuery { unconfirmed: true, .. } if !has_unconfirmed => Some("unconfirmed"),
            _ => None,
        }
    }
}

/// Reads a list. Of a list that is too long, one element more than allowed is kept, which shows that the list is too long; the
/// elements after are read and take no memory.
fn counted<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    struct Counted<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Counted<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut kept = Vec::new();
            while kept.len() <= BATCH_EXPORTS_MAX {
                let Some(element) = list.next_element()? else { return Ok(kept) };
                kept.push(element);
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(kept)
        }
    }

    list.deserialize_seq(Counted(PhantomData))
}

/// The query of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BatchQuery {
    /// For detach and delete: whether to remove devices that are mounted, or held in another way; false when left out.
    pub force: bool,
    /// For attach: whether to serve the cache's content although the store cannot confirm that this host still has the export; false when left
    /// out.
    pub unconfirmed: bool,
}

/// The result for one export of a batch: a line of the answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchResult {
    /// The name of the export, as in the request.
    pub name: String,
    /// The export after the operation. Left out after a failure, and after a deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub export: Option<Export>,
    /// Whether the export existed before. Left out after a failure, an attach and a detach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub existed: Option<bool>,
    /// Why the operation on this export failed. Left out after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<BatchError>,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static READ: Cell<usize> = const { Cell::new(0) };
    }

    /// An element that counts how often one is made.
    struct Element;

    impl<'de> Deserialize<'de> for Element {
        fn deserialize<D: Deserializer<'de>>(element: D) -> Result<Self, D::Error> {
            READ.set(READ.get() + 1);
            IgnoredAny::deserialize(element).map(|_| Self)
        }
    }

    /// Reads a list of so many elements: how many elements are in the result, and how many were made.
    fn read(elements: usize) -> (usize, usize) {
        READ.set(0);
        let json = format!("[{}]", vec!["{}"; elements].join(","));
        let list: Vec<Element> = counted(&mut serde_json::Deserializer::from_str(&json)).unwrap();
        (list.len(), READ.get())
    }

    #[test]
    fn of_a_list_that_is_too_long_no_more_is_made_than_shows_that() {
        for elements in [0, 1, BATCH_EXPORTS_MAX, BATCH_EXPORTS_MAX + 1] {
            assert_eq!(read(elements), (elements, elements));
        }
        assert_eq!(read(20 * BATCH_EXPORTS_MAX), (BATCH_EXPORTS_MAX + 1, BATCH_EXPORTS_MAX + 1));
    }

    #[test]
    fn a_list_is_json_to_the_end_however_long() {
        let read = |tail: &str| {
            let json = format!(r#"{{"delete":[{}{tail}"#, r#""a","#.repeat(BATCH_EXPORTS_MAX + 9));
            serde_json::from_str::<BatchRequest>(&json).map(|request| request.exports())
        };
        assert_eq!(read(r#""a"]}"#).unwrap(), BATCH_EXPORTS_MAX + 1);
        for tail in ["", "]}", r#""a""#, r#""a"]"#, r#""a"}"#] {
            assert!(read(tail).is_err(), "{tail}");
        }
    }
}
