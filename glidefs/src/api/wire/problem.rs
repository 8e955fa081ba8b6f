//! Refusals, by RFC 9457.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{AnyOfBuilder, ObjectBuilder, Type};
use utoipa::openapi::{Ref, RefOr, Schema};

/// Media type of refusals, by RFC 9457.
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// Why a request was refused: the body of every refusal, by RFC 9457.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind of the problem: `/v1/problems/` and the code. A name only: no page is there. Empty from an older daemon.
    #[serde(rename = "type", default)]
    #[schema(required, format = "uri-reference", example = "/v1/problems/not_found")]
    pub type_uri: String,
    /// The problem in a few words, the same for every refusal with the code.
    #[serde(default)]
    #[schema(required)]
    pub title: String,
    /// The status of the answer.
    #[serde(default)]
    #[schema(required, minimum = 400, maximum = 599)]
    pub status: u16,
    /// A sentence for people about the cause of this refusal, and the next step.
    #[serde(default)]
    #[schema(required)]
    pub detail: String,
    /// A code for programs, which stays the same in all versions.
    #[serde(default)]
    #[schema(required, schema_with = open_code)]
    pub code: String,
    /// Code and detail as of versions before the other members. The command line reads these, so that it understands any daemon.
    pub error: ErrorDetail,
}

/// Code and message of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// The same as `code` of the problem.
    #[schema(schema_with = open_code)]
    pub code: String,
    /// The same as `detail` of the problem.
    pub message: String,
}

/// A code, or text: the codes of newer daemons are not in the list, and a client made from this description must read them as well.
fn open_code() -> RefOr<Schema> {
    AnyOfBuilder::new()
        .item(Ref::from_schema_name("ProblemCode"))
        .item(ObjectBuilder::new().schema_type(Type::String).description(Some("a code of a newer daemon")))
        .description(Some("The code for programs. Later versions add codes."))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_an_older_daemon_is_read() {
        let old = r#"{"error": {"code": "not_found", "message": "there is none"}}"#;
        let problem: Problem = serde_json::from_str(old).unwrap();
        assert_eq!(
            (problem.error.code.as_str(), problem.error.message.as_str()),
            ("not_found", "there is none")
        );
    }
}
