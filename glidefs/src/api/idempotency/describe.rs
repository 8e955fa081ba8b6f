//! The header `Idempotency-Key` in the description of the API.
//!
//! Owns the parameter, which is added to every operation that takes a key, in one place.

use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, OpenApi, RefOr, Required, Type};

use super::takes_no_key;

/// Adds the header to every operation that takes a key.
pub(in crate::api) fn describe(description: &mut OpenApi) {
    for (path, item) in &mut description.paths.paths {
        if takes_no_key(path) {
            continue;
        }
        let changes = [&mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in changes.into_iter().flatten() {
            add(operation);
        }
    }
}

fn add(operation: &mut Operation) {
    let text = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(255))
        .pattern(Some("^[!-~]*$"));
    let parameter = ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "A text of your choice for this one request, such as a UUID. A request that is sent again with the same key is not carried out \
             again, for 24 hours after a success: it gets the answer of the first time, with the header `Idempotency-Replayed: true`. Other \
             answers: 422 `idempotency_key_reused` for another request, 409 `idempotency_key_in_use` while the first request is under way, \
             409 `idempotency_outcome_unknown` when the first request has failed (5xx), or the daemon ended meanwhile, 409 \
             `idempotency_answer_too_large` where the answer of the first time was not kept, 400 `bad_idempotency_key`, and 503 \
             `too_many_idempotency_keys` or `catalog_fails`, with nothing done. A refusal (4xx) leaves the key free.",
        ))
        .schema(Some(text))
        .build();
    operation.parameters.get_or_insert_default().push(RefOr::T(parameter));
}
