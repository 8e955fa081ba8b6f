//! The routes that explain the codes of refusals.

use axum::Json;

use super::body::InPath;
use super::error::ApiError;
use super::wire::{ProblemCode, ProblemExplanation};

/// All codes of refusals, with the meaning of each and what to do.
#[utoipa::path(
    get, path = "/v1/problems", operation_id = "list_problems", tag = "problems",
    responses((status = 200, description = "All codes, sorted.", body = [ProblemExplanation]))
)]
pub(super) async fn list() -> Json<Vec<ProblemExplanation>> {
    Json(ProblemCode::ALL.iter().map(|code| code.explanation()).collect())
}

/// What a code of a refusal means, and what to do. The `type` of a refusal leads here.
#[utoipa::path(
    get, path = "/v1/problems/{code}", operation_id = "show_problem", tag = "problems",
    params(("code" = String, Path, description = "The code of a refusal.")),
    responses((status = 200, description = "The meaning of the code.", body = ProblemExplanation))
)]
pub(super) async fn show(InPath(code): InPath<String>) -> Result<Json<ProblemExplanation>, ApiError> {
    ProblemCode::of(&code).map(|code| Json(code.explanation())).ok_or_else(ApiError::no_such_problem)
}
