//! Lists by pages: the query of a list.

use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

/// The query of a list: which part of the list to answer with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Most entries of the answer; all when left out. The header `Link` of the answer has the address of the next page, while there is one.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The answer begins behind this entry, also when the entry is gone: the value in the header `Link` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}
